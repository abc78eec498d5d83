"""What the consumer once got wrong, each fault in the shortest dialogue that shows it."""

from __future__ import annotations

import pytest

from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.session.timing import FORGET_S
from pdkv_connector.types import Credit, Span
from tests.unit.session.dialogue import NUM_TOKENS, TIMING, Decode, Prefill, of, said

ENDED = msg.Refuse("t", 1, msg.RefuseCode.ENDED, "ended")


def streaming(decode: Decode) -> Credit:
    """Bring transfer `t` to where slabs come; the first credit."""
    decode.want()
    (register,) = said(msg.Register, decode.welcome())
    decode.alive()
    return register.credits[0]


def two_producers() -> Decode:
    """Everything of P0 is here; P1 still sends."""
    decode = Decode(tp_size=2)
    decode.want()
    (register,) = said(msg.Register, decode.welcome("P0"))
    decode.welcome("P1")
    decode.alive("P0")
    decode.alive("P1", num_ready=4)
    decode.land(register.credits[0], 0, Span(0, 8))
    assert said(msg.Delivered, decode.scattered(0))
    return decode


def test_a_refused_leg_keeps_its_slot_until_closed() -> None:
    """The slot of a leg whose Alive was lost came free at once, while the producer could be writing into it."""
    decode = Decode()
    decode.want()
    decode.welcome()
    assert len(of(act.Fail, decode.hear(ENDED))) == 1
    assert decode.num_free == 3
    decode.hear(msg.Closed("t", 1, ()))
    assert decode.num_free == 4


def test_a_slot_that_was_asked_for_again_stays_with_its_leg_until_closed() -> None:
    """It came free with the first copy, and the second copy was written into somebody else's slab."""
    decode = Decode(window_slots=1)
    credit = streaming(decode)
    (ack,) = said(msg.Ack, decode.session.tick(TIMING.resend_s + 1))
    assert ack.missing == (credit,)
    decode.land(credit, 0, Span(0, 4))
    (ack,) = said(msg.Ack, decode.scattered(0))
    assert [granted.slot for granted in ack.credits] == [credit.slot]
    assert ack.credits[0].serial > credit.serial
    assert not of(act.Scatter, decode.land(credit, 0, Span(0, 4))), "the second copy"
    decode.land(ack.credits[0], 1, Span(4, 8))
    decode.scattered(1)
    assert decode.num_free == 3
    decode.hear(msg.Closed("t", 1, ()))
    assert decode.num_free == 4


def test_a_slot_that_was_not_asked_for_again_is_free_when_scattered() -> None:
    decode = Decode(window_slots=1)
    decode.land(streaming(decode), 0, Span(0, 8))
    decode.scattered(0)
    assert decode.num_free == 4


def test_a_damaged_slab_is_asked_for_at_once_and_alone() -> None:
    decode = Decode(window_slots=2)
    credit = streaming(decode)
    decode.land(credit, 0, Span(0, 4))
    decode.session.handle(ev.Damaged(act.SlabKey(act.LegKey("t", "P0", 1), 0), "checksum"), 0.1)
    other = decode.session.transfers["t"].legs["P0"].lent
    decode.land(next(lent for lent in other.values() if lent != credit), 1, Span(4, 8))
    (ack,) = said(msg.Ack, decode.scattered(1))
    assert ack.missing == (credit,)


def test_nothing_is_asked_for_while_the_producer_has_nothing_more() -> None:
    """Waiting for a long prefill made every slot doubtful, so that none of them could go to another transfer."""
    decode = Decode(window_slots=1)
    decode.want()
    (register,) = said(msg.Register, decode.welcome())
    decode.alive(num_ready=4)
    decode.land(register.credits[0], 0, Span(0, 4))
    decode.scattered(0)
    (ack,) = said(msg.Ack, decode.session.tick(TIMING.resend_s + 1))
    assert ack.credits
    assert not ack.missing


def test_what_a_dead_process_said_changes_nothing() -> None:
    """A late message of the old process passed for a second restart and failed the transfers of the new one."""
    decode = Decode()
    decode.want()
    decode.welcome(process="#1")
    decode.hear(msg.Alive(()), process="#2")
    decode.want("u", now=1.0)
    decode.welcome(process="#2")
    assert not of(act.Fail, decode.hear(msg.Alive(()), process="#1"))
    assert decode.session.transfers["u"].open


def test_a_refusal_of_a_leg_that_is_complete_fails_nothing() -> None:
    """A heartbeat that Delivered overtook was answered with Refuse, and the other producers' KV was thrown away."""
    decode = two_producers()
    assert not of(act.Fail, decode.hear(ENDED))
    assert not of(act.Fail, decode.hear(msg.Abort("t", 1, "client left")))
    assert decode.session.transfers["t"].open
    assert of(act.Fail, decode.hear(msg.Abort("t", 1, "client left"), peer="P1"))


def test_a_restart_of_a_producer_whose_leg_is_complete_fails_nothing() -> None:
    decode = two_producers()
    assert not of(act.Fail, decode.hear(msg.Alive(()), process="#2"))
    assert of(act.Fail, decode.hear(msg.Alive(()), process="#2", peer="P1"))


def test_a_producer_that_asks_for_hello_is_greeted_and_nothing_fails() -> None:
    """A repeated HELLO_REQUIRED that came after Welcome failed every transfer."""
    decode = Decode()
    streaming(decode)
    assert not of(act.Fail, decode.hear(msg.Refuse("", 0, msg.RefuseCode.HELLO_REQUIRED, "who?")))
    assert said(msg.Hello, decode.session.tick(1.0))
    decode.welcome()
    assert decode.session.transfers["t"].open


def test_a_failed_leg_sends_no_ack() -> None:
    """Scatters that ended after Abort were acknowledged, which renewed the lease that the quarantine counts on."""
    decode = Decode()
    decode.land(streaming(decode), 0, Span(0, 4))
    decode.session.handle(ev.Unwanted("t", "client left"), 1.0)
    actions = decode.scattered(0)
    assert not said(msg.Ack, actions)
    assert len(of(act.Fail, actions)) == 1


def test_the_quarantine_outlasts_the_producers_lease() -> None:
    """It counted with the consumer's own lease."""
    decode = Decode()
    decode.want()
    decode.welcome(lease_s=100.0)
    decode.session.handle(ev.Unwanted("t", "client left"), 0.0)
    decode.session.tick(99.0 + TIMING.peer_timeout_s)
    assert decode.num_free == 3
    decode.session.tick(101.0 + TIMING.peer_timeout_s)
    assert decode.num_free == 4


def test_heartbeats_keep_up_with_a_short_lease() -> None:
    decode = Decode()
    decode.want()
    decode.welcome(lease_s=0.3)
    decode.alive()
    decode.session.tick(0.01)
    assert said(msg.Heartbeat, decode.session.tick(0.15))


def test_a_request_for_another_engine_fails_alone() -> None:
    """The handshake's refusal failed every transfer of that producer."""
    decode = Decode()
    streaming(decode)
    decode.want("u", engine_id="Q", now=1.0)
    actions = decode.hear(msg.Refuse("", 0, msg.RefuseCode.INCOMPATIBLE, "engine_id differs"), 1.1)
    assert [fail.transfer_id for fail in of(act.Fail, actions)] == ["u"]
    assert decode.session.transfers["t"].open
    assert said(msg.Heartbeat, decode.session.tick(3.0))


def test_a_request_for_another_engine_fails_alone_while_others_wait_for_the_handshake() -> None:
    """The greeting named the engine of whichever request came last; its refusal failed all that waited for it."""
    decode, prefill = Decode(), Prefill()
    (greeting,) = said(msg.Hello, decode.want())
    late = said(msg.Hello, [*decode.want("u", engine_id="Q"), *decode.session.tick(TIMING.retry_s + 1)])
    assert late
    answers = [send.message for hello in (greeting, *late) for send in of(act.Send, prefill.hear(hello, peer="E"))]
    actions = [action for answer in answers for action in decode.hear(answer)]
    (fail,) = of(act.Fail, actions)
    assert (fail.transfer_id, "'Q'" in fail.reason) == ("u", True)
    assert [register.transfer_id for register in said(msg.Register, actions)] == ["t"]


def test_a_queued_transfer_gets_no_slot_when_they_are_scarce() -> None:
    """Transfers that the producer had not begun held all slots, and what it had computed could not be sent."""
    decode = Decode(num_slots=2, window_slots=2)
    decode.want("queued")
    (register,) = said(msg.Register, decode.welcome())
    assert len(register.credits) == 1
    (second,) = said(msg.Register, decode.want("queued too"))
    assert not second.credits
    assert decode.num_free == 1


def test_a_queued_transfer_does_not_keep_the_only_slot_from_one_that_is_computed() -> None:
    """It waited for the blocks of the other, and that one for its slot: until both had stalled for minutes."""
    decode = Decode(num_slots=2, window_slots=2)
    decode.want("queued")
    decode.welcome()
    decode.want()
    standing = msg.Standing("t", 2, msg.ProducerState.STREAMING, NUM_TOKENS)
    (ack,) = said(msg.Ack, decode.hear(msg.Alive((standing,))))
    assert len(ack.credits) == 1


def test_a_slow_prefill_does_not_keep_slots_from_others_of_its_engine() -> None:
    """The first held as many as it left free, so the engine's second transfer got none until the first went on."""
    decode = Decode(num_slots=4, window_slots=4)
    decode.want()
    decode.welcome()
    decode.alive()
    assert lent(decode) == [2]
    decode.want("quick")
    standing = msg.Standing("quick", 2, msg.ProducerState.STREAMING, NUM_TOKENS)
    (ack,) = said(msg.Ack, decode.hear(msg.Alive((standing,))))
    assert len(ack.credits) == 1
    assert decode.num_free == 1, "the last is for another producer"


@pytest.mark.parametrize("clock", [-1e6, 0.0, 1e6])
def test_silence_is_noticed_whatever_the_clock_shows(clock: float) -> None:
    decode = Decode()
    decode.want(now=clock)
    ticks = [decode.session.tick(clock + 0.1 * step) for step in range(1, round(10 * TIMING.peer_timeout_s) + 10)]
    assert len([fail for actions in ticks for fail in of(act.Fail, actions)]) == 1


def test_a_restart_does_not_free_slots_that_a_late_register_names() -> None:
    """They came free at once; the Register, meant for the dead process, reached the new one, which wrote into them."""
    decode = Decode()
    decode.want()
    decode.welcome()
    assert of(act.Fail, decode.hear(msg.Refuse("", 0, msg.RefuseCode.HELLO_REQUIRED, "who?"), process="#2"))
    assert decode.num_free == 3
    assert said(msg.Hello, decode.session.tick(1.0)), "the new process must know us before it can say Closed"
    decode.welcome(process="#2")
    assert said(msg.Abort, decode.session.tick(2.0))
    decode.hear(msg.Closed("t", 1, ()), process="#2")
    assert decode.num_free == 4


def test_a_producer_that_is_gone_leaves_nothing_behind() -> None:
    """Every restart of a producer on a new port left its socket behind, until there were no more to be had."""
    decode = Decode()
    decode.want()
    decode.welcome()
    decode.hear(ENDED, now=10.0)
    assert of(act.Forget, decode.session.tick(FORGET_S + 11.0)) == [], "its slot is not back yet"
    decode.hear(msg.Closed("t", 1, ()), now=20.0)
    assert of(act.Forget, decode.session.tick(FORGET_S + 19.0)) == []
    assert [forget.peer for forget in of(act.Forget, decode.session.tick(FORGET_S + 21.0))] == ["P0"]
    assert decode.session.book.peers == {}
    assert said(msg.Hello, decode.want(now=FORGET_S + 22.0)), "and is greeted when it is back"


def lent(decode: Decode) -> list[int]:
    """Slots that each producer holds."""
    return [len(leg.lent) for leg in decode.session.transfers["t"].legs.values()]


def test_a_producer_that_stands_still_leaves_slots_for_others() -> None:
    """It held the whole ring, and nothing came from anyone until it was given up and its slots had rested."""
    decode = Decode(tp_size=2, num_slots=4, window_slots=4)
    decode.want()
    decode.welcome("P0")
    decode.alive("P0")
    assert lent(decode) == [2, 0], "no more than it leaves free"
    decode.welcome("P1")
    decode.alive("P1")
    assert lent(decode) == [2, 1]


def test_slots_of_a_small_ring_go_round() -> None:
    """The only slot went to the first transfer again and again, until that was complete."""
    decode = Decode(num_slots=1, window_slots=1)
    for name in ("t", "u"):
        decode.want(name)
    decode.welcome()
    decode.hear(
        msg.Alive(
            tuple(msg.Standing(name, epoch, msg.ProducerState.STREAMING, 8) for epoch, name in [(1, "t"), (2, "u")])
        )
    )
    legs = [next(iter(transfer.legs.values())) for transfer in decode.session.transfers.values()]
    takers = []
    for seq in range(4):
        (leg,) = [leg for leg in legs if leg.lent]
        takers.append(leg.key.transfer_id)
        (credit,) = leg.lent.values()
        slab = msg.Slab(leg.key.transfer_id, leg.key.epoch, seq, 0, Span(0, 1), Span(seq, seq + 1), credit, "raw", 4, 7)
        decode.session.handle(ev.Landed("P0#1", slab), 0.0)
        decode.session.handle(ev.Scattered(act.SlabKey(leg.key, seq)), 0.0)
    assert takers == ["t", "u", "t", "u"]
