"""Scheduler half of a decode engine: what it asks for, once, and what it tells the producer when it does not."""

from __future__ import annotations

from typing import Any

import pytest

from pdkv_connector.adapters.vllm.consumer_scheduler import ConsumerScheduler
from pdkv_connector.adapters.vllm.params import Broken, Consume
from pdkv_connector.adapters.vllm.step_plan import RankReport, StepPlan
from pdkv_connector.types import Span
from tests.unit.adapters.engine_objects import BLOCK_SIZE, blocks, ended, request

WINDOWS = (0, 16)
NOTHING = (Span(0, 0), Span(0, 0))
BLOCKS = ([1, 2, 3], [0, 5, 6])


def intent(transfer_id: str = "t", digest: bool = False) -> Consume:
    return Consume(transfer_id, "e", ("h:1",), 1, digest)


class Engine:
    """A ConsumerScheduler, asked as vLLM's scheduler asks."""

    def __init__(self) -> None:
        self.half = ConsumerScheduler(WINDOWS, (BLOCK_SIZE, BLOCK_SIZE))
        self.plan = StepPlan()

    def add(self, name: str, wanted: Consume | Broken | None = None) -> object:
        made = request(name, 40)
        self.half.add(made, wanted or intent())
        return made

    def schedule(self, made: object, num_local: int = 0) -> int | None:
        """Ask for the tokens to come; allocate when the answer is a number."""
        num_external = self.half.num_external_tokens(made, num_local)
        if num_external is not None:
            self.half.allocated(made, blocks(*BLOCKS), num_external, self.plan)
        return num_external

    def finish(self, made: object, status: str = "FINISHED_STOPPED") -> dict[str, Any] | None:
        return self.half.finish(ended(made, status, 0), self.plan)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.mark.parametrize(
    ("num_local", "needs"),
    [(0, (Span(0, 39), Span(16, 39))), (16, (Span(16, 39), Span(16, 39))), (32, (Span(32, 39), Span(32, 39)))],
)
def test_only_what_is_missing_is_asked_for(engine: Engine, num_local: int, needs: tuple[Span, ...]) -> None:
    assert engine.schedule(engine.add("r"), num_local) == 39 - num_local
    (receive,) = engine.plan.receives
    assert (receive.transfer_id, receive.request_id, receive.engine_id, receive.endpoints) == ("t", "r", "e", ("h:1",))
    assert (receive.needs, receive.blocks, receive.num_prompt_tokens) == (needs, BLOCKS, 40)


def test_requests_without_remote_kv_are_left_alone(engine: Engine) -> None:
    engine.add("r")
    assert engine.schedule(request("other")) == 0
    assert engine.plan.receives == []


def test_a_prompt_of_one_token_needs_nothing(engine: Engine) -> None:
    made = request("r", 1)
    engine.half.add(made, intent())
    assert engine.schedule(made) == 0
    assert [receive.needs for receive in engine.plan.receives] == [NOTHING]


def test_asked_once_whatever_came_of_it(engine: Engine) -> None:
    made = engine.add("r")
    engine.schedule(made)
    engine.half.received({"r"})
    assert engine.schedule(made, 0) == 0, "a preempted request computes its prompt here"
    assert len(engine.plan.receives) == 1


def test_case_c03_a_full_hit_moves_nothing_and_tells_the_producer(engine: Engine) -> None:
    assert engine.schedule(engine.add("r"), 39) == 0
    (receive,) = engine.plan.receives
    assert (receive.needs, receive.blocks, receive.transfer_id) == (NOTHING, (), "t")
    assert engine.schedule(engine.add("sibling"), 32) == 0, "the producer has let go"
    assert len(engine.plan.receives) == 1


def test_siblings_wait_for_the_first_and_ask_for_nothing_more(engine: Engine) -> None:
    """A client's n > 1: what the first fetched is in the prefix cache but for the last, partial block."""
    first, second, stranger = engine.add("0_r"), engine.add("1_r"), engine.add("s", intent("another"))
    assert engine.schedule(first) == 39
    assert engine.schedule(second) is None
    assert engine.schedule(stranger) == 39
    engine.half.received({"0_r"})
    assert engine.schedule(second, 32) == 0
    assert [receive.request_id for receive in engine.plan.receives] == ["0_r", "s"]
    engine.finish(second)
    engine.finish(first)
    assert engine.plan.cancelled == []
    assert [receive.request_id for receive in engine.plan.receives] == ["0_r", "s"]


def test_a_sibling_goes_on_when_the_first_is_aborted(engine: Engine) -> None:
    first, second = engine.add("0_r"), engine.add("1_r")
    engine.schedule(first)
    engine.finish(first, "FINISHED_ABORTED")
    assert engine.plan.cancelled == [("t", "decode request ended as FINISHED_ABORTED")]
    assert engine.schedule(second) == 0
    assert len(engine.plan.receives) == 1


def test_case_c27_a_request_ended_before_it_was_scheduled_tells_the_producer(engine: Engine) -> None:
    assert engine.finish(engine.add("r"), "FINISHED_ABORTED") is None
    (receive,) = engine.plan.receives
    assert (receive.transfer_id, receive.needs, receive.blocks) == ("t", NOTHING, ())
    assert engine.plan.cancelled == []


def test_while_a_sibling_may_still_ask_the_producer_is_not_let_go(engine: Engine) -> None:
    first, second = engine.add("0_r"), engine.add("1_r")
    engine.finish(first, "FINISHED_ABORTED")
    assert engine.plan.receives == []
    assert engine.schedule(second) == 39
    assert [receive.request_id for receive in engine.plan.receives] == ["1_r"]


def test_aborted_while_kv_is_coming(engine: Engine) -> None:
    made = engine.add("r")
    engine.schedule(made)
    engine.finish(made, "FINISHED_ABORTED")
    assert engine.plan.cancelled == [("t", "decode request ended as FINISHED_ABORTED")]
    assert engine.schedule(engine.add("again")) == 0, "a transfer is fetched once"
    assert len(engine.plan.receives) == 1


def test_aborted_after_the_kv_came(engine: Engine) -> None:
    made = engine.add("r")
    engine.schedule(made)
    engine.half.received({"r", "stranger"})
    engine.finish(made, "FINISHED_ABORTED")
    assert engine.plan.cancelled == []
    assert len(engine.plan.receives) == 1


def test_unusable_params_fail_the_load_for_their_reason(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    made = engine.add("r", Broken("no transfer named"))
    assert "request r: no transfer named" in caplog.text
    assert engine.schedule(made) == 39
    (receive,) = engine.plan.receives
    assert (receive.request_id, receive.reason) == ("r", "no transfer named")
    assert engine.finish(made) is None
    assert engine.plan.cancelled == []


@pytest.mark.parametrize("asked", [True, False])
def test_digests_come_back_with_the_answer(engine: Engine, asked: bool) -> None:
    made = engine.add("r", intent(digest=asked))
    engine.schedule(made)
    assert [receive.digest for receive in engine.plan.receives] == [asked]
    one, other = RankReport({"r": (("a",), ("b",))}), RankReport({"r": (("c",), ("d",)), "stranger": ((), ())})
    if asked:
        engine.half.heard(one.aggregate(other))
    answer = engine.finish(made)
    digests = {"transfer_id": "t", "digests": ["a", "c"], "prefill_digests": ["b", "d"]}
    assert answer == ({"pdkv": digests} if asked else None)
