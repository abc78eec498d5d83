"""D already holds a prefix of the prompt: only the rest travels, and the tokens stay right."""

from __future__ import annotations

import pytest

from tests.engines.rig.pair import EnginePair
from tests.engines.rig.testbed import BLOCK_TOKENS, MAX_TOKENS, Testbed, assert_released, make_prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NUM_TOKENS = 1000
ALIGNED_TOKENS = 8 * BLOCK_TOKENS


def warm_decode(pair: EnginePair, prompt: list[int], num_blocks: int) -> None:
    """Let D compute, and so cache, the first blocks of the prompt on its own."""
    if num_blocks:
        pair.decode.generate(prompt[: num_blocks * BLOCK_TOKENS], 1)


@pytest.mark.parametrize(
    ("num_tokens", "num_hit_blocks"),
    [(NUM_TOKENS, 0), (NUM_TOKENS, 1), (NUM_TOKENS, 4), (NUM_TOKENS, 7), (ALIGNED_TOKENS, 8), (ALIGNED_TOKENS + 1, 8)],
)
def test_prefix_hit_on_decode(testbed: Testbed, pair: EnginePair, num_tokens: int, num_hit_blocks: int) -> None:
    prompt = make_prompt(num_tokens)
    reference = testbed.reference(pair.decode, prompt)
    warm_decode(pair, prompt, num_hit_blocks)
    outcome = pair.transfer(prompt, MAX_TOKENS, "sequential")
    assert outcome.decode.token_ids == reference
    # A hit on every block of an aligned prompt is cut back to leave a token to compute: up to a block is recomputed.
    assert outcome.decode.num_computed < MAX_TOKENS + BLOCK_TOKENS
    assert_released(pair.prefill, pair.decode)


@pytest.mark.parametrize("num_hit_blocks", [0, 1, 4])
def test_only_missing_tokens_travel(ours: Testbed, smollm: EnginePair, num_hit_blocks: int) -> None:
    prompt = make_prompt(NUM_TOKENS)
    warm_decode(smollm, prompt, num_hit_blocks)
    outcome = smollm.transfer(prompt, MAX_TOKENS, "sequential")
    landed = ours.timeline(smollm.decode).events(outcome.transfer_id, "landed")
    assert min(event["tokens"][0] for event in landed) == num_hit_blocks * BLOCK_TOKENS


def test_prefix_hit_on_prefill(testbed: Testbed, pair: EnginePair) -> None:
    """What P finds in its own cache is sent without being computed again."""
    prompt = make_prompt(NUM_TOKENS)
    reference = testbed.reference(pair.decode, prompt)
    pair.prefill.generate(prompt, 1)
    outcome = pair.transfer(prompt, MAX_TOKENS, "sequential")
    assert outcome.prefill.num_computed < NUM_TOKENS
    assert outcome.decode.token_ids == reference
    assert outcome.decode.num_computed == MAX_TOKENS
