"""Thousands of schedules hold every invariant; a session with a planted fault does not."""

from __future__ import annotations

import os

import pytest

from tests.simulator.mutant import Mutant
from tests.simulator.mutants import MUTANTS
from tests.simulator.simulate import failures, play

NUM_SCHEDULES = int(os.environ.get("PDKV_TEST_SCHEDULES", "20000"))
NUM_BATCHES = 40
ENOUGH_FOR_A_MUTANT = 4000


@pytest.mark.parametrize("batch", range(NUM_BATCHES))
def test_every_schedule_holds(batch: int) -> None:
    found = failures(range(batch, NUM_SCHEDULES, NUM_BATCHES))
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant) -> None:
    with mutant.planted():
        found = next(filter(None, map(play, range(ENOUGH_FOR_A_MUTANT))), None)
    assert found, f"{ENOUGH_FOR_A_MUTANT} schedules did not find: {mutant.name}"
    assert play(found.seed) is None, "the schedule fails without the fault as well"


def test_a_seed_replays_exactly() -> None:
    first: list[str] = []
    second: list[str] = []
    play(7, first.append)
    play(7, second.append)
    assert first == second
    assert len(first) > 10


def test_a_failure_says_how_to_replay_it() -> None:
    with MUTANTS[0].planted():
        found = next(filter(None, map(play, range(ENOUGH_FOR_A_MUTANT))))
    assert f"python -m tests.simulator --seed {found.seed}" in str(found)
