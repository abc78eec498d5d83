"""Scheduler half of a prefill engine, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.core.kv_cache_manager import KVCacheManager

from pdkv_connector.adapters.vllm import compat
from pdkv_connector.adapters.vllm.params import Produce, announcement
from pdkv_connector.adapters.vllm.producer_scheduler import ProducerScheduler
from pdkv_connector.adapters.vllm.step_plan import SendStep, StepPlan
from pdkv_connector.runtime.block_tables import GONE
from pdkv_connector.types import Span
from tests.unit.adapters.engine_objects import (
    BLOCK_SIZE,
    WINDOW,
    ended,
    first_step,
    idle_step,
    kv_config,
    next_step,
    request,
)

ANNOUNCED = announcement("e", ["h:1"], 1, 1)
NOTHING = Span(0, 0)


class Engine:
    """A ProducerScheduler and the plan of the step at hand."""

    def __init__(self, windows: tuple[int, ...] = (0,)) -> None:
        self.pinned = compat.EngineBlocks()
        self.half = ProducerScheduler(windows, (BLOCK_SIZE,) * len(windows), self.pinned)
        self.plan = StepPlan()

    def add(self, made: object, transfer_id: str = "t") -> None:
        self.half.add(made, Produce(transfer_id), self.plan)

    def step(self, output: object) -> StepPlan:
        """The plan that the workers get."""
        self.half.plan_step(output, self.plan)
        plan, self.plan = self.plan, StepPlan()
        return plan

    def finish(self, made: object) -> tuple[bool, dict[str, Any] | None]:
        return self.half.finish(made, ([1, 2, 3],), ANNOUNCED, self.plan)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_case_c26_a_prompt_in_chunks(engine: Engine) -> None:
    made = request(num_tokens=40)
    engine.add(made)
    plan = engine.step(first_step(made, 0, 16, [1]))
    assert [(offer.transfer_id, offer.request_id, offer.num_prompt_tokens) for offer in plan.offers] == [("t", "r", 40)]
    assert plan.sends == [SendStep("t", NOTHING, Span(0, 16), ([1],))]
    assert engine.step(next_step(made, 16, 16, [2])).sends == [SendStep("t", NOTHING, Span(16, 32), ([2],))]
    assert engine.step(next_step(made, 32, 4)).sends == [SendStep("t", NOTHING, Span(32, 36), ())]
    assert engine.step(next_step(made, 36, 4, [3])).sends == [SendStep("t", NOTHING, Span(36, 40), ([3],))]
    assert engine.step(next_step(made, 40, 1)).sends == []


def test_a_cached_prefix_is_there_at_the_first_step(engine: Engine) -> None:
    made = request(num_tokens=40)
    engine.add(made)
    assert engine.step(first_step(made, 32, 8, [1, 2, 3])).sends == [
        SendStep("t", Span(0, 32), Span(32, 40), ([1, 2, 3],))
    ]


def test_requests_that_no_consumer_wants_are_left_alone(engine: Engine) -> None:
    engine.add(request())
    assert engine.step(first_step(request("other"), 0, 16, [1])).sends == []


def test_resumed_after_preemption(engine: Engine) -> None:
    made = request(num_tokens=40)
    engine.add(made)
    engine.step(first_step(made, 0, 16, [1]))
    made.num_preemptions = 1
    assert engine.step(idle_step()).revoked == ["t"]
    assert engine.step(idle_step()).revoked == []
    plan = engine.step(next_step(made, 16, 24, [7, 8, 9], resumed=True))
    assert plan.revoked == []
    assert plan.sends == [SendStep("t", Span(0, 16), Span(16, 40), ([7, 8, 9],))]


def test_preempted_and_resumed_between_two_plans(engine: Engine) -> None:
    """Its status says RUNNING both times."""
    made = request(num_tokens=40)
    engine.add(made)
    engine.step(first_step(made, 0, 16, [1]))
    made.num_preemptions = 1
    plan = engine.step(next_step(made, 16, 24, [7, 8, 9], resumed=True))
    assert plan.revoked == ["t"]
    assert plan.sends == [SendStep("t", Span(0, 16), Span(16, 40), ([7, 8, 9],))]


@pytest.mark.parametrize("status", ["FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION"])
def test_case_c05_stopping_at_the_first_token_is_a_success(engine: Engine, status: str) -> None:
    made = request(num_tokens=40)
    engine.add(made)
    engine.step(first_step(made, 0, 40, [1, 2, 3]))
    held, params = engine.finish(ended(made, status, 40))
    assert held
    assert params is not None
    assert (params["remote_request_id"], params["remote_num_tokens"]) == ("r", 40)
    assert params["remote_block_ids"] == [1, 2, 3]
    assert params["pdkv"]["transfer_id"] == "t"
    plan = engine.step(idle_step())
    assert (plan.finished, plan.withdrawn) == (["t"], [])


@pytest.mark.parametrize("status", ["FINISHED_ABORTED", "FINISHED_ERROR", "FINISHED_LENGTH_CAPPED"])
def test_an_end_in_the_middle_of_the_prompt_withdraws(engine: Engine, status: str) -> None:
    made = request(num_tokens=40)
    engine.add(made)
    engine.step(first_step(made, 0, 16, [1]))
    assert engine.finish(ended(made, status, 16)) == (True, None)
    plan = engine.step(idle_step())
    assert plan.withdrawn == [("t", f"prefill request ended as {status}", True)]
    assert plan.finished == []


def test_aborted_before_it_was_scheduled_holds_nothing(engine: Engine) -> None:
    made = request()
    engine.add(made)
    assert engine.finish(ended(made, "FINISHED_ABORTED", 0)) == (False, None)
    plan = engine.step(idle_step())
    assert plan.withdrawn == [("t", "prefill request ended as FINISHED_ABORTED", False)]
    engine.add(request("again"))
    assert [offer.request_id for offer in engine.step(idle_step()).offers] == ["again"]


def test_case_c19_a_transfer_id_in_use_is_not_offered_twice(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    first, second = request("first"), request("second")
    engine.add(first)
    engine.add(second)
    assert "request second names transfer t, which request first is using" in caplog.text
    plan = engine.step(first_step(second, 0, 40, [4, 5, 6]))
    assert [offer.request_id for offer in plan.offers] == ["first"]
    assert plan.sends == []
    assert engine.finish(ended(second, "FINISHED_STOPPED", 40)) == (False, None)
    engine.step(first_step(first, 0, 40, [1, 2, 3]))
    assert engine.finish(ended(first, "FINISHED_STOPPED", 40))[0]
    engine.half.released({"first"})
    engine.add(request("third"))
    assert [offer.request_id for offer in engine.step(idle_step()).offers] == ["third"]


def test_case_c18_without_a_transfer_id_the_engine_names_one(engine: Engine) -> None:
    """As in the stock sequential flow, where the consumer learns it from the answer."""
    one, other = request("one"), request("other")
    engine.add(one, "")
    engine.add(other, "")
    names = [offer.transfer_id for offer in engine.step(first_step(one, 0, 40, [1, 2, 3])).offers]
    assert len(set(names)) == 2
    _, params = engine.finish(ended(one, "FINISHED_STOPPED", 40))
    assert params is not None
    assert params["pdkv"]["transfer_id"] == names[0]


# -- sliding windows --------------------------------------------------------------------------------------------------


class Windowed(Engine):
    """With vLLM's own block manager: one full-attention group, one with a window."""

    def __init__(self) -> None:
        super().__init__((0, WINDOW))
        self.manager = KVCacheManager(kv_config(), 512, BLOCK_SIZE, BLOCK_SIZE, enable_caching=False)
        self.pinned.bind(self.manager)

    @property
    def num_free(self) -> int:
        return int(self.manager.block_pool.get_num_free_blocks())

    def prefill(self, made: object, num_tokens: int) -> StepPlan:
        new = self.manager.allocate_slots(made, num_tokens)
        return self.step(first_step(made, 0, num_tokens, *new.get_block_ids()))

    def decode(self, made: object, num_computed: int) -> StepPlan:
        """One more token."""
        made.num_computed_tokens = num_computed  # type: ignore[attr-defined]
        made.append_output_token_ids(1)  # type: ignore[attr-defined]
        self.manager.allocate_slots(made, 1)
        return self.step(next_step(made, num_computed, 1))


def test_the_first_block_of_the_window_stays_until_it_is_released() -> None:
    engine = Windowed()
    num_free, made = engine.num_free, request(num_tokens=100)
    engine.add(made)
    engine.prefill(made, 100)
    first_needed = (99 - (WINDOW - 1)) // BLOCK_SIZE
    block = engine.manager.get_blocks("r").blocks[1][first_needed]
    assert block.ref_cnt == 2
    for num_computed in range(100, 140):
        engine.decode(made, num_computed)
    assert engine.manager.get_blocks("r").blocks[1][first_needed].is_null, "the engine has let go of it"
    assert block.ref_cnt == 1
    assert engine.finish(ended(made, "FINISHED_STOPPED", 140))[0]
    engine.manager.free(made)
    assert engine.num_free == num_free - 1
    engine.half.released({"r"})
    assert engine.num_free == num_free


def test_blocks_the_window_has_left_are_expired_in_time() -> None:
    """In the plan of the very step that lets the engine reuse them; not before one that was needed goes."""
    engine = Windowed()
    made = request(num_tokens=100)
    engine.add(made)
    engine.prefill(made, 100)
    needed = Span((99 - (WINDOW - 1)) // BLOCK_SIZE, 99 // BLOCK_SIZE + 1)
    told = 0
    for num_computed in range(100, 150):
        told = max([told, *(num_gone for _, group, num_gone in engine.decode(made, num_computed).expired if group)])
        table = engine.manager.get_blocks("r").blocks[1]
        gone = [index for index in needed if table[index].is_null and index != needed.start]
        assert all(index < told for index in gone), f"at {num_computed}: {gone} gone, {told} told"
    assert told > needed.start


def test_blocks_that_the_window_leaves_before_the_prompt_ends_are_never_read() -> None:
    """The engine gives them to others without a word. A resumed request hands over all its blocks anew."""
    engine, made = Engine((0, WINDOW)), request(num_tokens=100)
    first = (99 - (WINDOW - 1)) // BLOCK_SIZE
    engine.add(made)
    (one,) = engine.step(first_step(made, 0, 32, [1, 2], [3, 4])).sends
    (other,) = engine.step(next_step(made, 32, 68, [5, 6, 7, 8, 9], [10, 11, 12, 13, 14])).sends
    assert (one.new_blocks, other.new_blocks) == (
        ([1, 2], [GONE, GONE]),
        ([5, 6, 7, 8, 9], [GONE, GONE, 12, 13, 14]),
    )
    assert first == 4
    made.num_preemptions = 1
    (again,) = engine.step(next_step(made, 96, 4, list(range(1, 8)), [0, 0, 0, 0, 4, 5, 6], resumed=True)).sends
    assert again.new_blocks == (list(range(1, 8)), [GONE] * 4 + [4, 5, 6])


def test_requests_that_only_prefill_expire_nothing() -> None:
    engine = Windowed()
    made = request(num_tokens=100)
    engine.add(made)
    assert engine.prefill(made, 100).expired == []
    assert engine.decode(made, 100).expired == []
