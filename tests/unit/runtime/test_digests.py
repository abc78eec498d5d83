"""Digests compare the KV in both engines' blocks: they see what checksums on the wire cannot."""

from __future__ import annotations

import pytest

from benchmarks.shapes import element_offsets
from pdkv_connector.codec.base import SlabPart
from tests.unit.runtime.prompts import NUM_LAYERS, Prompt
from tests.unit.runtime.rank import wait_until
from tests.unit.runtime.roles import CHUNK_TOKENS, Decode, Prefill


@pytest.mark.parametrize("spoiled", [False, True])
def test_digests_tell_whether_both_sides_hold_the_same(prefill: Prefill, decode: Decode, spoiled: bool) -> None:
    prompt = Prompt(100)
    if spoiled:
        _spoil_before_digest(decode)
    decode.want(prompt, prefill, digest=True)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    prefill.rank.wait_released(prompt)
    wait_until(lambda: prompt.transfer_id in decode.rank.take().digests, "digests")
    ours, theirs = decode.rank.outcome.digests[prompt.transfer_id]
    assert len(ours) == len(theirs) == NUM_LAYERS
    assert (ours == theirs) is not spoiled
    assert bool(decode.faults()) is spoiled


def _spoil_before_digest(decode: Decode) -> None:
    """After the checksums were checked, one element of a layer goes wrong in the engine's blocks."""
    mover, memory = decode.rank.runtime.mover, decode.rank.memory
    digest = mover.digest

    def spoil(part: SlabPart) -> list[str]:
        layer = part.layers[-1]
        memory.tensors[layer][element_offsets(memory.regions[layer], part, len(part.layers) - 1).flat[0]] ^= 1
        return digest(part)

    mover.digest = spoil  # type: ignore[method-assign]


def test_without_being_asked_nobody_digests(prefill: Prefill, decode: Decode) -> None:
    prompt = Prompt(40)
    prefill.run(prompt)
    decode.want(prompt, prefill)
    decode.rank.wait_delivered(prompt)
    prefill.rank.wait_released(prompt)
    assert decode.rank.take().digests == {}


def test_a_producer_that_has_lost_a_block_since_gives_no_digest_and_lets_go(prefill: Prefill, decode: Decode) -> None:
    """It went on decoding and its window slid on, after all was sent: that must not keep the blocks held."""
    prompt = Prompt(CHUNK_TOKENS)
    runtime = prefill.rank.runtime
    digest = runtime.mover.digest

    def expire_first(part: SlabPart) -> list[str]:
        runtime.expire(prompt.transfer_id, 1, 2)
        return digest(part)

    runtime.mover.digest = expire_first  # type: ignore[method-assign]
    prefill.run(prompt)
    decode.want(prompt, prefill, digest=True)
    decode.rank.wait_delivered(prompt)
    prefill.rank.wait_released(prompt)
    assert decode.rank.take().digests == {}
    assert decode.faults() == []
