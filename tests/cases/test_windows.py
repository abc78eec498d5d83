"""Blocks that a sliding window leaves on the prefill engine before their KV was fetched are never read."""

from __future__ import annotations

from typing import Any

import pytest

from pdkv_connector.adapters.vllm.compat import NULL_BLOCK
from pdkv_connector.adapters.vllm.consumer_scheduler import ConsumerScheduler
from pdkv_connector.adapters.vllm.producer_scheduler import ProducerScheduler
from tests.cases.conftest import OpenPair
from tests.cases.pair import MAX_TOKENS, Pair, new_transfer_id
from tests.cases.planted import caught, plant
from tests.cases.text import Text

NOBODY = "127.0.0.1:9"
LENGTHS = range(18, 28)
"""With 23 tokens decoded, the window leaves a block of the prompt in the last step."""


def test_after_a_preemption_past_the_prompt_null_blocks_are_not_read(open_pair: OpenPair) -> None:
    """The prefill request decodes on, loses its blocks and finds the end of its own text in the prefix cache: the
    engine gives it the null block for all that its window has left, prompt included, and whatever lies there was sent.
    """
    pair = open_pair({"num_blocks": 26})
    older = pair.prefill.add(Text(17), max_tokens=150)
    text, transfer_id = Text(105), new_transfer_id()
    made = pair.ask_prefill(text, transfer_id, max_tokens=100)
    request = pair.prefill.scheduler.requests[made]
    pair.until(lambda: request.num_preemptions > 0, "preemption", pair.prefill)
    assert request.num_output_tokens > 48, "it was preempted before its window had left the prompt"
    asked = pair.ask_decode(text, transfer_id)
    transfers = pair.prefill.worker.rank.runtime._loop._producer.transfers
    pair.until(lambda: bool(transfers[transfer_id].legs), "registration of the consumer", pair.decode)
    pair.prefill.abort(older)
    pair.until(lambda: pair.prefill.status(made) == "RUNNING", "resumption", pair.prefill)
    _, in_window = pair.prefill.scheduler.kv_cache_manager.get_block_ids(made)
    assert in_window[(104 - 47) // 16 : 104 // 16].count(NULL_BLOCK) > 1, "it holds its prompt: this shows nothing"
    pair.until(lambda: asked in pair.decode.answers, "answer of the decode engine", pair.decode)
    assert pair.decode.loads["failed"] == 1
    pair.until_released()


@pytest.mark.parametrize("num_decoded", LENGTHS)
def test_a_block_that_the_window_leaves_in_the_last_step_is_not_read(open_pair: OpenPair, num_decoded: int) -> None:
    """The step was planned before it ran: what its tokens pushed out of the window went to others unannounced."""
    pair = open_pair()
    text = Text(105)
    params = pair.params_of(pair.ask_prefill(text, max_tokens=num_decoded))
    pair.prefill.use_free_blocks()
    asked = pair.decode.add(text, params, max_tokens=MAX_TOKENS)
    pair.until_answered(asked)
    pair.until_released()


def test_two_loads_that_fail_do_not_wait_for_each_other(open_pair: OpenPair) -> None:
    """The first had let go of its blocks and waited for new ones; the second held what it needed, and was not looked at
    as long as the first was in front of it.
    """
    pair = open_pair(None, {"num_blocks": 39, "peer_timeout_s": 0.1})
    asked = [ask_in_vain(pair, Text(num_tokens)) for num_tokens in (300, 150)]
    pair.until(lambda: pair.decode.loads["failed"] == 2, "failure of both", pair.decode)
    pair.until(lambda: all(name in pair.decode.answers for name in asked), "answers", pair.decode)
    pair.until_released()


def ask_in_vain(pair: Pair, text: Text) -> str:
    """Of a producer that is not there."""
    ours = {"transfer_id": new_transfer_id(), "endpoints": [NOBODY]}
    return pair.decode.add(text, {"do_remote_prefill": True, "pdkv": ours}, max_tokens=MAX_TOKENS)


def _null_blocks_too(original: Any) -> Any:
    def kept(self: ProducerScheduler, sending: Any, new_blocks: Any) -> Any:
        return tuple([max(0, block) for block in group] for group in original(self, sending, new_blocks))

    return kept


def _only_while_it_runs(original: Any) -> Any:
    """`_note_expired` for planned steps, not for the end."""

    def note(self: ProducerScheduler, sending: Any, num_computed: int, plan: Any) -> None:
        if not sending.request.is_finished():
            original(self, sending, num_computed, plan)

    return note


def _at_once(original: Any) -> Any:
    def received(self: ConsumerScheduler, request_ids: set[str], _failed: Any = ()) -> Any:
        return original(self, request_ids)

    return received


def test_control_null_blocks_are_read(open_pair: OpenPair) -> None:
    with caught("attends to wrong KV", plant(ProducerScheduler, "_kept", _null_blocks_too)):
        test_after_a_preemption_past_the_prompt_null_blocks_are_not_read(open_pair)


def test_control_the_last_step_is_not_told(open_pair: OpenPair) -> None:
    with caught("attends to wrong KV", plant(ProducerScheduler, "_note_expired", _only_while_it_runs)):
        for num_decoded in LENGTHS:
            test_a_block_that_the_window_leaves_in_the_last_step_is_not_read(open_pair, num_decoded)


def test_control_a_failed_load_asks_again_at_once(open_pair: OpenPair) -> None:
    with caught("no answers within", plant(ConsumerScheduler, "received", _at_once)):
        test_two_loads_that_fail_do_not_wait_for_each_other(open_pair)
