"""Slabs of several codecs: what fits a slot, what does not, and what a consumer refuses."""

from __future__ import annotations

import pytest

from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.session.codec_advisor import Advice, Load
from pdkv_connector.types import Credit, Span
from tests.unit.session.dialogue import Advisor, Decode, Prefill, hello, of, register, said

CREDITS = (Credit(0, 0), Credit(1, 1))
TOKEN_BYTES = 4


def prefill(slot_bytes: int = 16, raw_bytes: int = 24) -> Prefill:
    """Prompt of 8 tokens, 32 bytes of KV, sent with `split` in slabs of `raw_bytes`; nothing is computed yet."""
    started = Prefill(num_slots=4, slot_bytes=slot_bytes, advisor=Advisor("split", raw_bytes))
    started.hear(register(credits=CREDITS))
    return started


def too_large(started: Prefill, gather: act.Gather) -> list[act.Action]:
    return started.session.handle(ev.GatherTooLarge(gather.key), 1.0)


def test_a_slab_holds_as_much_kv_as_advised_and_its_payload_no_more_than_a_slot() -> None:
    gathers = of(act.Gather, prefill().compute())
    assert [(gather.codec, gather.tokens, gather.max_bytes) for gather in gathers] == [
        ("split", Span(0, 6), 16),
        ("split", Span(6, 8), 16),
    ]


def test_a_slot_of_the_peer_that_is_smaller_bounds_the_payload() -> None:
    assert {gather.max_bytes for gather in of(act.Gather, prefill(slot_bytes=4096).compute())} == {32}


def test_advice_is_asked_for_with_what_waits_and_what_moves() -> None:
    started = prefill()
    first, second = of(act.Gather, started.compute())
    assert started.advisor.loads == [Load(16, 32, 0), Load(16, 8, 24)]
    started.gathered(second)
    started.session.handle(ev.Written(second.key), 1.0)
    too_large(started, first)
    assert started.advisor.loads[2] == Load(16, 24, 0)


def test_a_slab_that_does_not_fit_goes_again_smaller_in_its_place() -> None:
    started = prefill()
    first, _ = of(act.Gather, started.compute())
    (again,) = of(act.Gather, too_large(started, first))
    assert (again.key, again.send_slot, again.tokens) == (first.key, first.send_slot, Span(0, 4))


def test_tokens_credits_and_slots_survive_a_slab_that_does_not_fit() -> None:
    """All wanted tokens go once, under both credits, through both send slots, numbered without a gap."""
    started = prefill()
    pending, written = of(act.Gather, started.compute()), []
    refused = 0
    while pending:
        gather = pending.pop(0)
        if len(gather.tokens) * TOKEN_BYTES > 16:
            refused += 1
            pending += of(act.Gather, too_large(started, gather))
            continue
        (write,) = started.gathered(gather)
        written.append(write.header)
        started.session.handle(ev.Written(gather.key), 1.0)
        slot = write.header.credit.slot
        fresh = Credit(slot, write.header.credit.serial + 10)
        received = tuple(Span(header.seq, header.seq + 1) for header in written)
        pending += of(act.Gather, started.hear(msg.Ack("t", 1, len(written), received, (fresh,), ()), 1.0))
    assert refused
    assert sorted(token for header in written for token in header.tokens) == list(range(8))
    assert sorted(header.seq for header in written) == list(range(len(written)))
    assert len(started.session.book.send_slots) == 4


def test_revoked_tokens_of_a_slab_that_does_not_fit_wait_until_they_are_computed_again() -> None:
    started = prefill(slot_bytes=8, raw_bytes=16)
    first, second = of(act.Gather, started.compute())
    started.session.handle(ev.Revoked("t"), 1.0)
    assert not of(act.Gather, too_large(started, first) + too_large(started, second))
    assert len(started.session.book.send_slots) == 4
    again = of(act.Gather, started.compute(1.0))
    assert [gather.tokens for gather in again] == [Span(0, 2), Span(2, 6)]
    assert {gather.key.seq for gather in again} == {0, 1}


def test_a_slab_that_does_not_fit_after_its_leg_ended_gives_its_slot_back() -> None:
    started = prefill()
    first, second = of(act.Gather, started.compute())
    started.hear(msg.Abort("t", 1, "no longer wanted"))
    assert not said(msg.Closed, too_large(started, first))
    assert said(msg.Closed, too_large(started, second))
    assert len(started.session.book.send_slots) == 4


def test_a_codec_that_makes_kv_larger_ends_the_transfer_and_does_not_try_for_ever() -> None:
    started = prefill(raw_bytes=16)
    first, _ = of(act.Gather, started.compute())
    actions = too_large(started, first)
    assert not of(act.Gather, actions)
    assert [abort.reason for abort in said(msg.Abort, actions)] == ["codec split made 16 bytes of KV larger"]


def test_a_producer_that_shall_wait_goes_on_when_a_write_has_ended() -> None:
    started = prefill(raw_bytes=8)
    (first, second) = of(act.Gather, started.compute())
    started.advisor.advice = None
    for gather in (first, second):
        started.gathered(gather)
    started.session.book.send_slots.append(2)
    assert not of(act.Gather, started.hear(msg.Ack("t", 1, 1, (), (Credit(2, 2),), ())))
    started.advisor.advice = Advice("raw", 8)
    assert [gather.codec for gather in of(act.Gather, started.session.handle(ev.Written(first.key), 1.0))] == ["raw"]


def test_welcome_names_every_codec_both_have() -> None:
    (welcome,) = said(msg.Welcome, Prefill().hear(hello(metadata=b"again")))
    assert welcome.codecs == ("split", "raw")


def slab(credit: Credit, tokens: Span, codec: str, encoded_bytes: int) -> ev.Landed:
    return ev.Landed("P0#1", msg.Slab("t", 1, 0, 0, Span(0, 1), tokens, credit, codec, encoded_bytes, 7))


def landing(num_tokens: int, codec: str, encoded_bytes: int, slot_bytes: int = 32) -> list[act.Action]:
    """One slab of the 8 tokens, 4 bytes each, comes."""
    decode = Decode()
    decode.session._slot_bytes = slot_bytes
    decode.want()
    (registered,) = said(msg.Register, decode.welcome())
    decode.alive()
    return decode.session.handle(slab(registered.credits[0], Span(0, num_tokens), codec, encoded_bytes), 1.0)


@pytest.mark.parametrize(
    ("num_tokens", "codec", "encoded_bytes", "slot_bytes"),
    [(8, "raw", 32, 32), (8, "split", 9, 32), (8, "split", 8, 8)],
)
def test_any_agreed_codec_is_taken(num_tokens: int, codec: str, encoded_bytes: int, slot_bytes: int) -> None:
    (scatter,) = of(act.Scatter, landing(num_tokens, codec, encoded_bytes, slot_bytes))
    assert scatter.header.codec == codec


@pytest.mark.parametrize(
    ("num_tokens", "codec", "encoded_bytes", "slot_bytes", "reason"),
    [
        (8, "pack4", 9, 32, "has codec 'pack4'; agreed were split, raw"),
        (8, "split", 0, 32, "has 0 bytes"),
        (8, "split", 33, 64, "has 33 bytes for 32 of KV"),
        (8, "split", 9, 8, "has 9 bytes for 32 of KV, a slot has 8"),
        (8, "split", 7, 7, "has 7 bytes for 32 of KV, a slot has 7"),
    ],
)
def test_any_other_slab_is_refused(
    num_tokens: int, codec: str, encoded_bytes: int, slot_bytes: int, reason: str
) -> None:
    actions = landing(num_tokens, codec, encoded_bytes, slot_bytes)
    assert not of(act.Scatter, actions)
    assert reason in of(act.Fail, actions)[0].reason


def test_credits_are_lent_before_a_slab_is_decoded() -> None:
    """Decoding held them up, and the wire was idle meanwhile."""
    decode = Decode()
    decode.want()
    (registered,) = said(msg.Register, decode.welcome())
    actions = decode.session.handle(slab(registered.credits[0], Span(0, 2), "raw", 8), 1.0)
    assert [type(action) for action in actions] == [act.Send, act.Scatter]
    assert len(said(msg.Ack, actions)[0].credits) == 2
