"""Real engines for tests and benchmarks: one process each, one in-process vLLM engine inside, driven over a pipe.

spec.py           what to start: model, dtype, role, connector settings, core, network namespace
dialect.py        how a connector is configured and what its requests carry (ours, and vLLM's NixlConnector)
child.py          runs in the process: reads commands, steps the engine, reports events (JSON lines)
engine.py         the child's engine: requests, steps, counters
threads.py        where its threads run
child_process.py  the parent's end of the pipe: start, log, signals, end
process.py        EngineProcess, the parent's handle: submit, wait, abort, counters, stop
pair.py           a prefill and a decode engine, and one request over both in any dispatch order
shelf.py          engines kept alive between tests, the least recently used stopped first
timeline.py       reads what the connectors recorded, as JSON lines with wall-clock times
"""
