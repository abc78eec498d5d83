"""Where the threads of an engine process run: engines of one machine must not slow each other by waiting."""

from __future__ import annotations

import os
import time
from pathlib import Path

TASKS = Path("/proc/self/task")
WATCH_S = 0.5
BUSY_SHARE = 0.5
POLLING_NICENESS = 10


def settle(core: int) -> None:
    """Pin the calling thread to `core`, free all others, and give those that poll without pause a low priority.

    Connectors pin threads and poll in tight loops as if cores were theirs alone. On two cores that would slow the
    model of both engines; at a low priority a polling thread gets what the models leave. Not at the lowest: a starved
    thread may hold a lock that the model's thread waits for.
    """
    everywhere = set(range(os.cpu_count() or 1))
    before = _cpu_s_by_thread()
    for thread in before:
        os.sched_setaffinity(thread, everywhere)
    os.sched_setaffinity(0, {core})
    time.sleep(WATCH_S)
    for thread, cpu_s in _cpu_s_by_thread().items():
        if cpu_s - before.get(thread, cpu_s) > BUSY_SHARE * WATCH_S:
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, 0) + POLLING_NICENESS)


def _cpu_s_by_thread() -> dict[int, float]:
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    usage = {}
    for task in TASKS.iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        usage[int(task.name)] = (int(fields[11]) + int(fields[12])) / ticks_per_s
    return usage
