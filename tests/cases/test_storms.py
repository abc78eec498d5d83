"""Storms of requests over two engines without a model: right KV, every answer, every block back, nothing left over."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, closing

import pytest

from pdkv_connector.adapters.vllm.consumer_scheduler import ConsumerScheduler
from pdkv_connector.adapters.vllm.producer_scheduler import ProducerScheduler
from pdkv_connector.runtime.block_tables import BlockTables
from pdkv_connector.session.consumer_book import ConsumerBook
from tests.cases import storm
from tests.cases.planted import nothing, plant
from tests.cases.test_full_hits import only_the_window
from tests.cases.test_late_writes import report_and_go_on
from tests.cases.weather import draw
from tests.simulator.mutant import Mutant

NUM_STORMS, NUM_BATCHES = 200, 8
ENOUGH_FOR_A_MUTANT = 60
PATIENCE_S = 5.0
"""A planted hang is seen after this long."""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("batch", range(NUM_BATCHES))
def test_case_c11_case_c13_case_c15_case_c29_25_of_200_storms(batch: int) -> None:
    tally: Counter[str] = Counter()
    damage = list(storm.play(range(batch, NUM_STORMS, NUM_BATCHES), tally))
    assert not damage, "\n".join(map(str, damage))
    assert tally["delivered"] > tally["requests"] // 4, f"little was moved: {tally}"
    assert min(tally["failed"], tally["restarts"], tally["hybrid"], tally["full"]) > 0, f"fair weather: {tally}"


def test_storms_differ_and_a_seed_is_one_storm() -> None:
    assert draw(5) == draw(5)
    assert len({draw(seed) for seed in range(50)}) == 50


MUTANTS = {
    "a window's first block is cached half filled": (
        "attends to wrong KV", (plant(ConsumerScheduler, "_needs", only_the_window),),
    ),
    "blocks go back before the last write": (
        "attends to wrong KV", (plant(ConsumerBook, "fail", report_and_go_on), plant(BlockTables, "drop", nothing)),
    ),
    "the prefill engine's scheduler forgets to let go": (
        "no release of all blocks", (plant(ProducerScheduler, "released", nothing),),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("symptom", "faults"), MUTANTS.values(), ids=MUTANTS)
def test_case_c11_case_c13_case_c15_case_c29_control_a_planted_fault_is_found(
    symptom: str, faults: tuple[Mutant, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storm, "PATIENCE_S", PATIENCE_S)
    with ExitStack() as planted, closing(storm.play(range(ENOUGH_FOR_A_MUTANT))) as damages:
        for fault in faults:
            planted.enter_context(fault.planted())
        found = next((damage for damage in damages if symptom in damage.what), None)
    assert found, f"{ENOUGH_FOR_A_MUTANT} storms did not find it"
    assert f"python -m tests.cases.storm {found.seed} 1" in str(found)
