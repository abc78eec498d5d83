"""The KV itself is equal on both engines, layer by layer, bit by bit; in bfloat16 too, where tokens prove nothing."""

from __future__ import annotations

import pytest

from tests.engines.rig.pair import EnginePair, Order, Outcome
from tests.engines.rig.testbed import MAX_TOKENS, Testbed, make_prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NUM_LAYERS = {"smollm2": 30, "gemma3": 18}


def digests(outcome: Outcome) -> tuple[list[str], list[str]]:
    """Digests by layer of the KV in P's blocks and in D's, as D's answer carries them."""
    decode = outcome.decode.kv_transfer_params
    assert outcome.decode.num_computed == MAX_TOKENS, "D recomputed: there is no transfer to compare"
    assert decode is not None, "D returned no kv_transfer_params"
    return decode["pdkv"]["prefill_digests"], decode["pdkv"]["digests"]


def transfer(pair: EnginePair, num_tokens: int, order: Order, seed: int = 0) -> Outcome:
    """One transfer with digests; in sequential order the wish travels in P's answer."""
    return pair.transfer(make_prompt(num_tokens, seed), MAX_TOKENS, order, digest=True)


@pytest.mark.parametrize("order", ["sequential", "concurrent"])
@pytest.mark.parametrize("num_tokens", [129, 1000])
def test_bfloat16_kv_is_equal(ours: Testbed, num_tokens: int, order: Order) -> None:
    on_prefill, on_decode = digests(transfer(ours.default_pair("smollm2", "bfloat16"), num_tokens, order))
    assert on_prefill == on_decode
    assert len(set(on_prefill)) == NUM_LAYERS["smollm2"]


def test_float32_kv_is_equal(ours: Testbed, pair: EnginePair, model: str) -> None:
    on_prefill, on_decode = digests(transfer(pair, 1000, "concurrent"))
    assert on_prefill == on_decode
    assert len(on_prefill) == NUM_LAYERS[model]


def test_digests_tell_prompts_apart(ours: Testbed) -> None:
    """Control: another prompt of the same length changes the digest of every layer."""
    pair = ours.default_pair("smollm2", "bfloat16")
    one, _ = digests(transfer(pair, 300, "sequential"))
    other, _ = digests(transfer(pair, 300, "sequential", seed=1))
    assert all(a != b for a, b in zip(one, other, strict=True))


def test_damaged_slab_is_seen_by_both_checks(ours: Testbed) -> None:
    """Control: with bits of one slab flipped on D the tokens and the digests differ."""
    damaged = ours.spec(
        "consumer", "smollm2", label="damaged", extra={"integrity": False}, env={"PDKV_TEST_FLIP_SLAB": "0"}
    )
    pair = ours.pair(ours.spec("producer", "smollm2"), damaged)
    reference = ours.reference(pair.decode, make_prompt(300))
    outcome = transfer(pair, 300, "sequential")
    on_prefill, on_decode = digests(outcome)
    assert outcome.decode.num_computed == MAX_TOKENS, "D recomputed: the damage was never used"
    assert outcome.decode.token_ids != reference
    assert on_prefill != on_decode
