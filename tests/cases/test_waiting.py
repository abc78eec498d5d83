"""C13, C15: requests whose KV has come and that the engine cannot run yet."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from tests.cases.conftest import OpenPair
from tests.cases.pair import DECODED, new_transfer_id
from tests.cases.planted import caught, plant
from tests.cases.text import Text


def test_case_c13_kv_that_comes_when_no_block_is_free_is_kept_until_one_is(open_pair: OpenPair) -> None:
    """vllm#18631: how many tokens had come was known in that step only; in the next the engine broke an invariant.

    The decode engine has 8 blocks: a request that decodes takes the last while KV is on its way.
    """
    pair = open_pair(None, {"num_blocks": 9})
    busy = pair.decode.add(Text(15), max_tokens=17)
    text, transfer_id = Text(33), new_transfer_id()
    made = pair.ask_decode(text, transfer_id)
    pair.until(lambda: pair.decode.num_free == 0, "pool without a free block")
    assert pair.decode.status(made) == "WAITING_FOR_REMOTE_KVS"
    pair.ask_prefill(text, transfer_id)
    pair.until_prefill_is_free()
    pair.until(lambda: pair.decode.status(made) != "WAITING_FOR_REMOTE_KVS", "end of the wait for KV")
    assert pair.decode.status(made) == "WAITING"
    assert pair.decode.num_free == 0
    assert busy not in pair.decode.answers
    assert pair.decode.scheduler.requests[made].num_computed_tokens == 32
    pair.until(lambda: {busy, made} <= pair.decode.answers.keys(), "answers of the decode engine")
    assert pair.decode.num_computed[made] == DECODED
    pair.until_released()


def test_case_c15_kv_that_has_come_is_used_although_a_request_in_front_is_stuck(open_pair: OpenPair) -> None:
    """vllm#45388: the scheduler stopped at the first request it had no blocks for; one whose KV was there, behind it,
    kept its blocks and was never run, and so neither was.

    In front: a request that names the first one's transfer and waited for it, of a prompt too long for what is free.
    """
    pair = open_pair(None, {"num_blocks": 13})
    first, second = Text(33), Text(33)
    one, other = new_transfer_id(), new_transfer_id()
    running = pair.ask_decode(first, one, max_tokens=12)
    stuck = pair.ask_decode(Text(90), one, max_tokens=1)
    behind = pair.ask_decode(second, other)
    pair.ask_prefill(first, one)
    pair.until_begun(running)
    assert pair.decode.status(behind) == "WAITING_FOR_REMOTE_KVS"
    pair.ask_prefill(second, other)
    pair.until_prefill_is_free()
    pair.until(lambda: behind in pair.decode.answers, "answer to the request behind")
    assert pair.decode.status(stuck) == "WAITING"
    assert pair.decode.num_computed[behind] == DECODED
    pair.until_answered(stuck)
    pair.until_released()


def _forget_what_came(original: Any) -> Any:
    def schedule(self: Scheduler, *args: Any) -> Any:
        output = original(self, *args)
        for waiting in self.kv_holding_waiting:
            if waiting.status.name == "WAITING":
                waiting.num_computed_tokens = 0
        return output

    return schedule


def _one_queue_for_all(_original: Any) -> Any:
    return staticmethod(lambda _request: False)


def test_case_c13_control_what_came_is_forgotten(open_pair: OpenPair) -> None:
    with caught("0 == 32", plant(Scheduler, "schedule", _forget_what_came)):
        test_case_c13_kv_that_comes_when_no_block_is_free_is_kept_until_one_is(open_pair)


def test_case_c15_control_the_scan_stops_at_the_first_that_is_stuck(open_pair: OpenPair) -> None:
    with caught("no answer to the request behind", plant(Scheduler, "_holds_kv_blocks", _one_queue_for_all)):
        test_case_c15_kv_that_has_come_is_used_although_a_request_in_front_is_stuck(open_pair)
