"""`python -m tests.simulator --seed N` replays one schedule with a trace; `--count N` runs many."""

from __future__ import annotations

import argparse
import collections
import sys
import time

from tests.simulator.scenario import draw
from tests.simulator.simulate import failures, play


def _replay(seed: int) -> int:
    print(draw(seed))
    failure = play(seed, print)
    print(failure or f"seed {seed}: every invariant held")
    return int(failure is not None)


def _many(first: int, count: int) -> int:
    begun = time.perf_counter()
    found = failures(range(first, first + count))
    for failure in found[:20]:
        print(failure)
    took_s = time.perf_counter() - begun
    print(f"{count} schedules, {len(found)} failures, {took_s:.1f} s, {1e3 * took_s / count:.1f} ms each")
    print(dict(collections.Counter(failure.rule for failure in found)))
    return int(bool(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this schedule with a trace")
    parser.add_argument("--first", type=int, default=0, help="first seed of a run")
    parser.add_argument("--count", type=int, default=1000, help="number of schedules")
    options = parser.parse_args()
    return _replay(options.seed) if options.seed is not None else _many(options.first, options.count)


sys.exit(main())
