"""What a peer names is checked against what was granted before a byte moves, on both sides."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from pdkv_connector.errors import ProtocolError
from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.types import Credit, Span
from tests.unit.session.dialogue import NUM_TOKENS, Decode, Prefill, facts, hello, of, register, said

HUGE = (1 << 48) - 1


def change(message: msg.Message, **fields: object) -> msg.Message:
    changed: msg.Message = msgspec.structs.replace(message, **fields)
    return changed


# -- a consumer that asks for what there is not -----------------------------------------------------------------------

WANTS = {
    "a layer beyond the last": msg.Want((0, 1), Span(0, NUM_TOKENS), Span(0, 2)),
    "a layer of a huge number": msg.Want((HUGE,), Span(0, NUM_TOKENS), Span(0, 2)),
    "no layer": msg.Want((), Span(0, NUM_TOKENS), Span(0, 2)),
    "tokens past the prompt": msg.Want((0,), Span(0, NUM_TOKENS + 1), Span(0, 2)),
    "heads past the last": msg.Want((0,), Span(0, NUM_TOKENS), Span(1, 3)),
    "no heads": msg.Want((0,), Span(0, NUM_TOKENS), Span(1, 1)),
    "heads backwards": msg.Want((0,), Span(0, NUM_TOKENS), Span(2, 0)),
}


@pytest.mark.parametrize("want", WANTS.values(), ids=WANTS)
def test_kv_that_does_not_exist_is_refused(want: msg.Want) -> None:
    prefill = Prefill()
    prefill.compute()
    actions = prefill.hear(change(register(), wants=(*register().wants, want)))
    assert [refuse.code for refuse in said(msg.Refuse, actions)] == [msg.RefuseCode.BAD_REQUEST]
    assert not of(act.Gather, actions)


def test_kv_that_exists_is_gathered() -> None:
    """Negative control."""
    prefill = Prefill()
    prefill.compute()
    assert of(act.Gather, prefill.hear(register()))


@pytest.mark.parametrize("fields", [{"num_prompt_tokens": NUM_TOKENS + 1}, {"prompt_digest": "a guess"}])
def test_kv_of_a_prompt_that_the_peer_does_not_know_is_refused(fields: dict[str, object]) -> None:
    prefill = Prefill()
    prefill.compute()
    actions = prefill.hear(change(register(), **fields))
    assert [refuse.code for refuse in said(msg.Refuse, actions)] == [msg.RefuseCode.PROMPT_DIFFERS]
    assert not of(act.Gather, actions)


def test_nothing_is_written_outside_the_ring_that_the_peer_announced() -> None:
    """Slot 4 of 4 does not exist; of two that do, one is used."""
    prefill = Prefill()
    prefill.hear(register(credits=(Credit(4, 0), Credit(HUGE, 1), Credit(3, 2))))
    gathers = of(act.Gather, prefill.compute())
    (write,) = prefill.gathered(gathers[0])
    assert (len(gathers), write.header.credit) == (1, Credit(3, 2))


@pytest.mark.parametrize("slot_bytes", [0, 1, 3])
def test_a_ring_whose_slots_hold_no_token_is_refused(slot_bytes: int) -> None:
    prefill = Prefill()
    prefill.hear(change(hello(metadata=b"new"), ring=msg.RingSpec(0, slot_bytes, 4, 0, "DRAM")))
    prefill.compute()
    actions = prefill.hear(register())
    assert [refuse.code for refuse in said(msg.Refuse, actions)] == [msg.RefuseCode.BAD_REQUEST]
    assert not of(act.Gather, actions)


@pytest.mark.parametrize(("announced", "used"), [(HUGE, 32), (32, 32), (16, 16)])
def test_a_slab_is_never_longer_than_a_slot_of_either_side(announced: int, used: int) -> None:
    prefill = Prefill(slot_bytes=32)
    prefill.hear(change(hello(metadata=b"new"), ring=msg.RingSpec(0, announced, 4, 0, "DRAM")))
    prefill.compute()
    assert [gather.max_bytes for gather in of(act.Gather, prefill.hear(register()))] == [used]


# -- a producer that writes what was not lent -------------------------------------------------------------------------


def granted() -> tuple[Decode, msg.Slab]:
    """A consumer that has lent a slot, and a header that is right in everything."""
    decode = Decode()
    decode.want()
    decode.welcome()
    decode.alive()
    (leg,) = decode.session.transfers["t"].legs.values()
    credit = next(iter(leg.lent.values()))
    return decode, msg.Slab("t", 1, 0, 0, Span(0, 1), Span(0, NUM_TOKENS), credit, "raw", 4 * NUM_TOKENS, 7)


BEYOND: dict[str, Callable[[msg.Slab], dict[str, object]]] = {
    "a want that was not made": lambda _: {"want": 1},
    "a want of a huge number": lambda _: {"want": HUGE},
    "layers past the last": lambda _: {"layers": Span(0, 2)},
    "layers far away": lambda _: {"layers": Span(HUGE - 1, HUGE)},
    "no layers": lambda _: {"layers": Span(0, 0)},
    "layers backwards": lambda _: {"layers": Span(1, 0)},
    "tokens past the last": lambda _: {"tokens": Span(0, NUM_TOKENS + 1)},
    "no tokens": lambda _: {"tokens": Span(3, 3)},
    "tokens backwards": lambda _: {"tokens": Span(5, 2)},
    "a codec that was not agreed": lambda _: {"codec": "pickle"},
    "no bytes": lambda _: {"encoded_bytes": 0},
    "more bytes than the KV has": lambda slab: {"tokens": Span(0, 2), "encoded_bytes": 9},
    "more bytes than a slot has": lambda _: {"encoded_bytes": 33},
    "bytes of a huge number": lambda _: {"encoded_bytes": HUGE},
}


@pytest.mark.parametrize("beyond", BEYOND.values(), ids=BEYOND)
def test_a_header_outside_its_grant_fails_the_transfer_and_scatters_nothing(
    beyond: Callable[[msg.Slab], dict[str, object]],
) -> None:
    decode, slab = granted()
    actions = decode.session.handle(ev.Landed("P0#1", change(slab, **beyond(slab))), 0.0)  # type: ignore[arg-type]
    assert not of(act.Scatter, actions)
    (fail,) = of(act.Fail, actions)
    assert "broke the protocol" in fail.reason


FOREIGN: dict[str, tuple[str, dict[str, object]]] = {
    "a slot that was not lent": ("P0#1", {"credit": Credit(3, 0)}),
    "a slot beyond the ring": ("P0#1", {"credit": Credit(HUGE, 0)}),
    "a serial that was not given": ("P0#1", {"credit": Credit(0, HUGE)}),
    "another process": ("P0#2", {}),
    "another epoch": ("P0#1", {"epoch": 2}),
    "another transfer": ("P0#1", {"transfer_id": "u"}),
}


@pytest.mark.parametrize(("instance", "fields"), FOREIGN.values(), ids=FOREIGN)
def test_a_header_of_no_grant_at_all_changes_nothing(instance: str, fields: dict[str, object]) -> None:
    decode, slab = granted()
    actions = decode.session.handle(ev.Landed(instance, change(slab, **fields)), 0.0)  # type: ignore[arg-type]
    assert not of(act.Scatter, actions)
    assert not of(act.Fail, actions)


def test_a_header_inside_its_grant_is_scattered() -> None:
    """Negative control of all above."""
    decode, slab = granted()
    assert of(act.Scatter, decode.session.handle(ev.Landed("P0#1", slab), 0.0))


# -- what a lying peer could otherwise make this side believe, or keep -------------------------------------------------


def test_a_standing_before_the_welcome_completes_nothing() -> None:
    """A leg that asked for nothing yet counts as whole: the engine would be told that KV is there."""
    decode = Decode()
    decode.want()
    early = decode.alive()
    assert not said(msg.Delivered, early)
    assert not of(act.Deliver, decode.welcome())


@pytest.mark.parametrize("lease_s", [float("inf"), float("nan"), 1e300, -1.0, 0.0])
def test_a_lease_without_bounds_is_refused(lease_s: float) -> None:
    """It would keep the slots of a failed transfer for ever, or make heartbeats as fast as the clock ticks."""
    frame = msg.encode("P", msg.Welcome("P", msg.PROTOCOL_VERSION, facts(), ("raw",), b"", lease_s))
    with pytest.raises(ProtocolError):
        msg.decode(frame)


def test_a_layer_that_is_asked_for_twice_is_refused() -> None:
    """One frame of 64 wants with 2,048 layers each makes some 260,000 sets of spans."""
    prefill = Prefill()
    actions = prefill.hear(change(register(), wants=(msg.Want((0,) * 2048, Span(0, NUM_TOKENS), Span(0, 2)),) * 64))
    assert [refuse.code for refuse in said(msg.Refuse, actions)] == [msg.RefuseCode.BAD_REQUEST]


def test_what_was_never_sent_is_not_remembered_as_received() -> None:
    """Spans that acknowledge nothing pile up with each Ack, and each costs a sort of all."""
    prefill = Prefill()
    prefill.hear(register())
    prefill.compute()
    for serial in range(3):
        far = tuple(Span(start, start + 1) for start in range(1000 + 10_000 * serial, 9000 + 10_000 * serial, 2))
        prefill.hear(msg.Ack("t", 1, serial, far, (), ()))
    (leg,) = prefill.session.transfers["t"].legs.values()
    assert not any(slab.received for slab in leg.outgoing.values())
    assert sorted(leg.outgoing) == [0]


def test_no_more_credits_are_kept_than_the_ring_has_slots() -> None:
    prefill = Prefill()
    prefill.hear(register())
    for serial in range(3):
        lent = tuple(Credit(number % 4, 5000 * serial + number) for number in range(4096))
        prefill.hear(msg.Ack("t", 1, serial, (), lent, ()))
    (leg,) = prefill.session.transfers["t"].legs.values()
    assert len(leg._credits) <= 4
