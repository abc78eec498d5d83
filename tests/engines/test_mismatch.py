"""Engines that cannot share KV are refused by name of the fact that differs, and D computes the prompt itself."""

from __future__ import annotations

import pytest

from tests.engines.rig.pair import EnginePair
from tests.engines.rig.testbed import MAX_TOKENS, Testbed, assert_released, make_prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NUM_TOKENS = 300


def assert_refused(ours: Testbed, pair: EnginePair, fact: str) -> None:
    prompt = make_prompt(NUM_TOKENS)
    reference = ours.reference(pair.decode, prompt)
    outcome = pair.transfer(prompt, MAX_TOKENS, "concurrent")
    assert outcome.decode.token_ids == reference
    assert outcome.decode.num_computed == NUM_TOKENS + MAX_TOKENS - 1
    reasons = ours.timeline(pair.decode).reasons(outcome.transfer_id)
    assert any(fact in reason for reason in reasons), reasons
    assert reasons[0] in pair.decode.process.log(), "the reason is not in D's log"
    assert_released(pair.prefill, pair.decode)


def test_another_dtype_is_refused(ours: Testbed) -> None:
    pair = ours.pair(ours.spec("producer", "smollm2", "bfloat16"), ours.spec("consumer", "smollm2"))
    assert_refused(ours, pair, "dtype")


def test_another_model_is_refused(ours: Testbed) -> None:
    pair = ours.pair(ours.spec("producer", "gemma3"), ours.spec("consumer", "smollm2"))
    assert_refused(ours, pair, "model")
