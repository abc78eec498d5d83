"""`python -m tests.simulator --seed N` replays one schedule with a trace; `--count N --jobs J` runs many."""

from __future__ import annotations

import argparse
import sys

from tests.simulator.draw import draw
from tests.simulator.simulate import play
from tests.simulator.soak import run


def _replay(seed: int) -> int:
    print(draw(seed))
    failure = play(seed, print)
    print(failure or f"seed {seed}: every invariant held")
    return int(failure is not None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this schedule with a trace")
    parser.add_argument("--first", type=int, default=0, help="first seed of a run")
    parser.add_argument("--count", type=int, default=1000, help="number of schedules")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    if options.seed is not None:
        return _replay(options.seed)
    return run(options.first, options.count, options.jobs)


if __name__ == "__main__":  # worker processes import this file
    sys.exit(main())
