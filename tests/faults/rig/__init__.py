"""Faults for real servers: a prefill and a decode server, their clients, and what stands between them.

vllm_server.py   a vLLM server at a fixed address: killed, stopped, started again; what it says of itself in /metrics
client.py        requests as futures; to cancel one is a client that leaves
router.py        what a router sends: both legs at once, or one after the other
ground.py        the pair of servers all tests share, reference tokens, and that all is well afterwards
relay.py         a TCP relay for the control channel that holds, slows and cuts
moments.py       brings a transfer into a state of the protocol, and holds it there
record.py        what came of each fault, for the table at the end
"""
