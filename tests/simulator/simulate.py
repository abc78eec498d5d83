"""Runs schedules by seed, and says how to run a failed one again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from tests.simulator.draw import draw
from tests.simulator.violation import Violation
from tests.simulator.world import World


@dataclass(frozen=True)
class Failure:
    """A schedule that broke a rule."""

    seed: int
    rule: str
    what: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.what} -- replay: python -m tests.simulator --seed {self.seed}"


def play(seed: int, trace: Callable[[str], None] | None = None) -> Failure | None:
    """Run one schedule; the failure, or None when every invariant held."""
    world = World(draw(seed), Random(f"schedule {seed}"), trace)
    try:
        world.run()
    except Violation as violation:
        return Failure(seed, violation.rule, f"t={world.loop.now:.3f} {violation}")
    except Exception as error:  # noqa: BLE001 - a session must not raise, whatever it raises
        return Failure(seed, "f", f"t={world.loop.now:.3f} f: raised {type(error).__name__}: {error}")
    return None


def failures(seeds: Iterable[int]) -> list[Failure]:
    """Every failure among `seeds`."""
    return [failure for failure in map(play, seeds) if failure]
