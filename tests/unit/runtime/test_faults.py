"""Writes that go wrong on the wire, and a codec that breaks: repaired, or told; never silently wrong."""

from __future__ import annotations

from typing import Any

import pytest

from pdkv_connector.codec.base import SlabPart
from pdkv_connector.runtime.ring_buffer import RingBuffer
from pdkv_connector.session import consumer, producer
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.transport.loopback import Fate, LoopbackTransport
from tests.unit.runtime.conftest import OpenRank
from tests.unit.runtime.prompts import Prompt
from tests.unit.runtime.roles import CHUNK_TOKENS, Decode, Prefill


class FirstTry:
    """Gives the first write of chosen slabs its fate; what is written again is delivered."""

    def __init__(self, fate: Fate, *slabs: int) -> None:
        self.fate = fate
        self.due = set(slabs)

    def __call__(self, notification: bytes) -> Fate:
        header = msg.decode(notification).message
        assert isinstance(header, msg.Slab)
        if header.seq not in self.due:
            return Fate.DELIVER
        self.due.remove(header.seq)
        return self.fate


@pytest.mark.parametrize("fate", [Fate.CORRUPT, Fate.LOSE_NOTIFICATION, Fate.FAIL])
def test_a_bad_write_is_repeated(open_rank: OpenRank, decode: Decode, fate: Fate) -> None:
    faults = FirstTry(fate, 0, 3, 4, 11)
    prefill = Prefill(open_rank("cpu_amx", 32, transport=LoopbackTransport(faults)))
    prompt = Prompt(2 * CHUNK_TOKENS)
    decode.want(prompt, prefill)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    assert faults.due == set(), "the transfer had fewer slabs than the test thinks"
    assert decode.faults() == []
    prefill.rank.wait_released(prompt)


def test_without_integrity_the_corruption_arrives(open_rank: OpenRank) -> None:
    """So it is the checksum that finds it."""
    transport = LoopbackTransport(FirstTry(Fate.CORRUPT, 0))
    prefill = Prefill(open_rank("cpu_amx", 32, transport=transport, integrity=False))
    decode = Decode(open_rank("nhd", 16, integrity=False))
    prompt = Prompt(40)
    decode.want(prompt, prefill)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    assert decode.faults()


def test_a_wire_that_always_corrupts_fails_the_transfer(open_rank: OpenRank, decode: Decode) -> None:
    transport = LoopbackTransport(lambda _: Fate.CORRUPT)
    prefill = Prefill(open_rank("cpu_amx", 32, transport=transport))
    prompt = Prompt(40)
    decode.want(prompt, prefill)
    prefill.run(prompt)
    assert "slabs keep arriving damaged: checksum differs" in decode.rank.wait_failed(prompt)
    assert decode.wrong_elements() == 0
    prefill.rank.wait_released(prompt)


def test_a_codec_that_breaks_costs_its_transfer_only(prefill: Prefill, decode: Decode) -> None:
    broken, sound = Prompt(90), Prompt(91)
    mover = prefill.rank.runtime.mover
    gather = mover.encode

    def break_one(codec: str, part: SlabPart, ring: RingBuffer, slot: int, max_bytes: int) -> tuple[int, int]:
        tables = prefill.rank.runtime.tables.of(broken.transfer_id, part.layers)
        if tables is not None and tables[0] is part.block_tables[0]:
            raise RuntimeError("illegal memory access")
        return gather(codec, part, ring, slot, max_bytes)

    mover.encode = break_one  # type: ignore[method-assign]
    for prompt in (broken, sound):
        prefill.run(prompt)
        decode.want(prompt, prefill)
    assert "illegal memory access" in decode.rank.wait_failed(broken)
    decode.rank.outcome.failed.clear()
    decode.rank.wait_delivered(sound)
    prefill.rank.wait_released(broken, sound)
    assert decode.wrong_elements() == 0


def test_an_event_nobody_knows_costs_itself_only(prefill: Prefill, decode: Decode) -> None:
    prompt = Prompt(50)
    bogus: list[Any] = [object()]
    decode.rank.runtime.post(bogus)
    decode.want(prompt, prefill)
    prefill.run(prompt)
    prefill.rank.runtime.post(bogus)
    prefill.rank.runtime.revoke(["no such transfer"])
    decode.rank.wait_delivered(prompt)
    assert decode.faults() == []


def test_a_fault_of_ours_leaves_no_request_waiting(
    monkeypatch: pytest.MonkeyPatch, prefill: Prefill, decode: Decode
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    one, late = Prompt(40), Prompt(40)
    for session, event in ((consumer, ev.Wanted), (producer, ev.Finished)):
        monkeypatch.setitem(session._EVENTS, event, broken)
    decode.want(one, prefill)
    assert "internal fault" in decode.rank.wait_failed(one)
    prefill.run(late)
    prefill.rank.wait_released(late)
