"""A soak: real prefill and decode servers behind our proxy, under seeded load, with a kill -9 of each side.

    python -m tests.soak --minutes 30

workload.py   what is asked: a pool of prompts, a seeded series of requests over it
oracle.py     the right tokens of each prompt, from one engine without any transfer, kept between runs
pair.py       the processes: both engines with their lives, a proxy for each order of dispatch
traffic.py    clients that send requests, give some up, and compare what comes back
verdict.py    how one request ended, and whether it was allowed to
outage.py     kill, restart on the same address, time until KV flows again
watch.py      memory and metrics of every process, sampled
memory.py     how fast a process grows
metrics.py    reads the engines' metrics
journal.py    what the connectors recorded of their transfers
settle.py     nothing is left behind when all is over
summary.py    figures and missed goals
damaged.py    control: a connector that zeroes slabs
"""
