"""A slab whose checksum is not right is never scattered."""

from __future__ import annotations

from contextlib import nullcontext
from unittest import mock

import pytest

from pdkv_connector.codec import checksum as checksums
from pdkv_connector.codec.base import SlabPart
from pdkv_connector.errors import ProtocolError
from pdkv_connector.runtime.ring_buffer import RingBuffer
from pdkv_connector.types import Span
from tests.unit.runtime.conftest import OpenRank
from tests.unit.runtime.prompts import Prompt
from tests.unit.runtime.roles import Decode, Prefill

TOKENS = Span(0, 40)


@pytest.mark.parametrize("wrong", [0, 1, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1], ids=hex)
def test_whatever_a_wrong_checksum_looks_like_it_is_noticed(open_rank: OpenRank, wrong: int) -> None:
    """0 is the right one."""
    rank, ring = open_rank(), RingBuffer(1, 1 << 16, "cpu")
    blocks = rank.allocate(TOKENS.stop)
    rank.fill(0, blocks, Prompt(TOKENS.stop), TOKENS)
    part = rank.part(0, blocks, TOKENS)
    num_bytes, right = rank.runtime.mover.encode("raw", part, ring, 0, ring.slot_bytes)
    with pytest.raises(ProtocolError, match="checksum differs") if wrong else nullcontext():
        rank.runtime.mover.decode("raw", part, ring, 0, num_bytes, wrong or right)


@pytest.mark.parametrize("kind", ["DRAM", "VRAM"])
def test_memory_of_another_kind_is_sent_no_checksum(
    open_rank: OpenRank, decode: Decode, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The send ring of a CPU rank is said to lie on a GPU."""
    prefill, prompt = Prefill(open_rank("cpu_amx", 32)), Prompt(40)
    hands = prefill.rank.runtime._loop._hands
    hands._send_ring = mock.Mock(wraps=hands._send_ring, memory=mock.Mock(kind=kind))
    sent: list[int] = []
    scatter = decode.rank.runtime.mover.decode

    def decode_and_note(codec: str, part: SlabPart, ring: RingBuffer, slot: int, num_bytes: int, checksum: int) -> None:
        sent.append(checksum)
        scatter(codec, part, ring, slot, num_bytes, checksum)

    monkeypatch.setattr(decode.rank.runtime.mover, "decode", decode_and_note)
    decode.want(prompt, prefill)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    assert decode.faults() == []
    assert {checksum == checksums.NONE for checksum in sent} == {kind == "VRAM"}
