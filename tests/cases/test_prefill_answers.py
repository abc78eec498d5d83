"""C05, C06: answers that are about the prompt, or end with its first token."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from pdkv_connector.adapters.vllm import compat
from pdkv_connector.adapters.vllm.consumer_scheduler import ConsumerScheduler
from tests.cases.engine import SAMPLED
from tests.cases.pair import DECODED, Pair, new_transfer_id
from tests.cases.planted import caught, plant
from tests.cases.text import Text
from tests.unit.proxy import test_bodies as bodies

NUM_TOKENS = 100


def test_case_c05_a_prefill_whose_first_token_ends_it_still_delivers(pair: Pair) -> None:
    """vllm#46008: the prefill engine took `stopped` for a failure, and the decode engine waited out the lease."""
    text, transfer_id = Text(NUM_TOKENS), new_transfer_id()
    prefill_id = pair.ask_prefill(text, transfer_id, stop_token_ids=[SAMPLED])
    made = pair.ask_decode(text, transfer_id)
    pair.until_answered(made)
    assert pair.prefill.answers[prefill_id].finish_reason is FinishReason.STOP
    assert pair.prefill.answers[prefill_id].kv_transfer_params is not None
    assert pair.decode.num_computed[made] == DECODED
    pair.until_released()


@pytest.mark.parametrize("insists", [False, True], ids=["as usual", "and asks for cached KV"])
def test_case_c06_a_prompt_that_is_scored_is_computed_where_it_is_scored(pair: Pair, insists: bool) -> None:
    """vllm#50792: the decode engine took the KV, had no logits of the prompt, and returned uninitialised memory."""
    text, transfer_id = Text(NUM_TOKENS), new_transfer_id()
    asked: dict[str, Any] = {"skip_reading_prefix_cache": False} if insists else {}
    pair.ask_prefill(text, transfer_id)
    made = pair.ask_decode(text, transfer_id, prompt_logprobs=1, **asked)
    pair.until_begun(made)
    pair.until_prefill_is_free()
    pair.until_answered(made)
    assert pair.decode.num_computed[made] == NUM_TOKENS - 1 + DECODED
    assert pair.decode.worker.rank.num_bytes == 0


def _only_length_capped(_original: Any) -> Any:
    return lambda request: request.status is RequestStatus.FINISHED_LENGTH_CAPPED


def test_case_c05_control_stopped_is_a_failure(pair: Pair) -> None:
    with caught("None is not None", plant(compat, "succeeded", _only_length_capped)):
        test_case_c05_a_prefill_whose_first_token_ends_it_still_delivers(pair)


def test_case_c06_control_kv_comes_for_a_prompt_that_is_scored(pair: Pair) -> None:
    with caught("assert 3 ==", plant(compat, "scores_prompt", lambda _original: lambda _request: False)):
        test_case_c06_a_prompt_that_is_scored_is_computed_where_it_is_scored(pair, insists=True)


def test_case_c06_control_the_producer_is_not_told(pair: Pair) -> None:
    with caught("no release of the prefill", plant(ConsumerScheduler, "allocated", lambda _original: _forget)):
        test_case_c06_a_prompt_that_is_scored_is_computed_where_it_is_scored(pair, insists=False)


def _forget(*_args: Any) -> None:
    return None


def test_case_c06_control_the_router_sends_it_to_both() -> None:
    with caught("prompt_logprobs", plant(bodies, "local_reason", lambda _original: lambda *_args, **_kwargs: None)):
        bodies.test_local_reason({"prompt": "x", "prompt_logprobs": 0}, "prompt_logprobs")
