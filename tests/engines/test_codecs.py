"""KV that was coded on its way is the same KV, bit for bit, on real engines: every codec, both models, both dtypes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.rig.pair import EnginePair, Outcome
from tests.engines.rig.testbed import MAX_TOKENS, Testbed, make_prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NUM_TOKENS = 1000
MOST_BITS = {
    ("split", "bfloat16"): 11.0,
    ("split", "float32"): 27.2,
    ("pack4", "bfloat16"): 12.3,
    ("pack4", "float32"): 28.3,
}
"""Bits an element on the wire, at most: the short slabs of short chunks included."""
TOKEN_BYTES = {("smollm2", "bfloat16"): 30 * 3 * 64 * 4, ("gemma3", "bfloat16"): 18 * 256 * 4}


def coding_pair(ours: Testbed, model: str, dtype: str, codec: str, **consumer: Any) -> EnginePair:
    """A producer that is told its codec, and a consumer that takes whatever comes."""
    producer = ours.spec("producer", model, dtype, label=codec, extra={"codec": codec})
    return ours.pair(producer, ours.spec("consumer", model, dtype, **consumer))


def transfer(pair: EnginePair) -> Outcome:
    """One transfer with digests, all of whose KV D takes from P."""
    outcome = pair.transfer(make_prompt(NUM_TOKENS), MAX_TOKENS, "concurrent", digest=True)
    assert outcome.decode.num_computed == MAX_TOKENS, "D recomputed: there is no transfer to look at"
    return outcome


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("codec", ["split", "pack4"])
def test_coded_kv_is_equal(ours: Testbed, model: str, dtype: str, codec: str) -> None:
    pair = coding_pair(ours, model, dtype, codec)
    reference = ours.reference(pair.decode, make_prompt(NUM_TOKENS))
    outcome = transfer(pair)
    answer = outcome.decode.kv_transfer_params
    assert answer is not None
    assert answer["pdkv"]["prefill_digests"] == answer["pdkv"]["digests"]
    if dtype == "float32":
        assert outcome.decode.token_ids == reference
    slabs = ours.timeline(pair.decode).events(outcome.transfer_id, "landed")
    assert {slab["codec"] for slab in slabs} == {codec}
    token_bytes = TOKEN_BYTES[model, "bfloat16"] * (2 if dtype == "float32" else 1)
    elements = (NUM_TOKENS - 1) * token_bytes // (4 if dtype == "float32" else 2)
    bits = 8 * sum(slab["bytes"] for slab in slabs) / elements
    assert bits < MOST_BITS[codec, dtype]


def test_damaged_coded_slab_is_asked_for_again(ours: Testbed) -> None:
    """Control: with the checksum of the wire off, a coded slab's own check finds a changed byte."""
    damaged = {"label": "damaged-coded", "extra": {"integrity": False}, "env": {"PDKV_TEST_FLIP_SLAB": "0"}}
    pair = coding_pair(ours, "smollm2", "float32", "split", **damaged)
    reference = ours.reference(pair.decode, make_prompt(NUM_TOKENS))
    outcome = transfer(pair)
    assert outcome.decode.token_ids == reference
    landed = [event["seq"] for event in ours.timeline(pair.decode).events(outcome.transfer_id, "landed")]
    assert sorted(seq for seq in set(landed) if landed.count(seq) > 1) == landed[:1]
