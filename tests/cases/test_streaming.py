"""C26: prompts longer than one prefill step."""

from __future__ import annotations

from typing import Any

from pdkv_connector.adapters.vllm.producer_scheduler import ProducerScheduler
from pdkv_connector.session import events as ev
from pdkv_connector.session import producer
from tests.cases.engine import CHUNK_TOKENS
from tests.cases.pair import DECODED, Pair, new_transfer_id
from tests.cases.planted import caught, plant
from tests.cases.text import Text
from tests.unit.adapters import test_producer_scheduler as scheduler
from tests.unit.runtime import test_transfers as transfers
from tests.unit.runtime.roles import Decode, Prefill


def test_case_c26_a_prompt_of_several_steps_arrives_step_by_step(pair: Pair) -> None:
    """sglang#6320: with chunked prefill the decode engine waited for ever for a prompt longer than one chunk."""
    text, transfer_id = Text(5 * CHUNK_TOKENS + 20), new_transfer_id()
    made = pair.ask_decode(text, transfer_id)
    prefill_id = pair.ask_prefill(text, transfer_id)
    pair.decode.step()
    pair.prefill.step()
    pair.decode.worker.rank.wait_slabs(1)
    assert pair.prefill.num_computed[prefill_id] == CHUNK_TOKENS, "the prefill was over: nothing came early"
    pair.until_answered(made)
    assert pair.decode.num_computed[made] == DECODED
    pair.until_released()


def _all_or_nothing(original: Any) -> Any:
    """KV counts as there when the whole prompt is."""

    def on_ready(self: Any, event: ev.Ready, now: float) -> None:
        offer = self.transfers[event.transfer_id].offer
        if event.tokens.stop == offer.num_prompt_tokens:
            original(self, event, now)

    return on_ready


def _first_step_only(original: Any) -> Any:
    def plan_step(self: ProducerScheduler, output: Any, plan: Any) -> None:
        if not output.scheduled_cached_reqs.req_ids:
            original(self, output, plan)

    return plan_step


def test_case_c26_control_nothing_is_sent_before_the_prompt_is_computed(
    pair: Pair, prefill: Prefill, decode: Decode
) -> None:
    fault = plant(producer._EVENTS, ev.Ready, _all_or_nothing)
    with caught("no 1 slabs", fault):
        test_case_c26_a_prompt_of_several_steps_arrives_step_by_step(pair)
    with caught("slabs", fault):
        transfers.test_case_c26_a_long_prompt_streams_while_it_is_computed(prefill, decode)


def test_case_c26_control_only_the_first_step_is_planned(pair: Pair) -> None:
    fault = plant(ProducerScheduler, "plan_step", _first_step_only)
    with caught("no answer of the decode engine", fault):
        test_case_c26_a_prompt_of_several_steps_arrives_step_by_step(pair)
    with caught("SendStep", fault):
        scheduler.test_case_c26_a_prompt_in_chunks(scheduler.Engine())
