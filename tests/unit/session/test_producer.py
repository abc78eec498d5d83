"""What the producer once got wrong, each fault in the shortest dialogue that shows it."""

from __future__ import annotations

import msgspec

from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.session.timing import FORGET_S
from pdkv_connector.types import Credit, Span
from tests.unit.session.dialogue import LEASE_OVER_S, TIMING, Advisor, Prefill, hello, of, register, said


def ack(serial: int, missing: tuple[Credit, ...] = ()) -> msg.Ack:
    return msg.Ack("t", 1, serial, (), (Credit(0, 0),), missing)


def test_a_withdrawn_request_is_released_once() -> None:
    """It was released twice: when its last leg was gone and again right after."""
    prefill = Prefill()
    prefill.hear(register())
    actions = prefill.session.handle(ev.Withdrawn("t", "client left", True), 1.0)
    assert len(of(act.Release, actions)) == 1


def test_a_gather_that_fails_after_its_leg_ended_gives_its_send_slot_back() -> None:
    """The slot was lost for good."""
    prefill = Prefill(num_slots=2)
    prefill.hear(register())
    (gather,) = of(act.Gather, prefill.compute())
    prefill.hear(msg.Abort("t", 1, "no longer wanted"))
    assert len(prefill.session.book.send_slots) == 1
    prefill.session.handle(ev.GatherFailed(gather.key, "gone"), 1.0)
    assert len(prefill.session.book.send_slots) == 2


def test_blocks_wait_for_a_running_gather() -> None:
    prefill = Prefill()
    prefill.hear(register())
    (gather,) = of(act.Gather, prefill.compute())
    prefill.finish()
    assert not of(act.Release, prefill.hear(msg.Abort("t", 1, "no longer wanted")))
    assert len(of(act.Release, prefill.session.handle(ev.Gathered(gather.key, 32, 7), 1.0))) == 1


def test_a_register_overtaken_by_its_abort_starts_nothing() -> None:
    """It started a leg after Closed, which wrote into a slot lent to somebody else by then."""
    prefill = Prefill()
    prefill.compute()
    assert said(msg.Closed, prefill.hear(msg.Abort("t", 1, "no longer wanted")))
    late = prefill.hear(register())
    assert not of(act.Gather, late)
    assert [refuse.code for refuse in said(msg.Refuse, late)] == [msg.RefuseCode.ENDED]


def test_a_register_overtaken_by_its_abort_starts_nothing_before_the_request_came() -> None:
    prefill = Prefill()
    prefill.hear(msg.Abort("u", 1, "no longer wanted"))
    late = prefill.hear(msg.Register("u", 1, 8, "digest", 1, register().wants, register().credits))
    assert said(msg.Refuse, late)
    assert "u" not in prefill.session.transfers


def test_blocks_that_one_of_two_consumers_fetched_are_not_held_for_ever() -> None:
    """The lease ended only for requests that no consumer at all had asked for."""
    prefill = Prefill()
    prefill.hear(register(num_consumers=2))
    prefill.compute()
    prefill.finish()
    (gather,) = prefill.session.transfers["t"].legs[act.LegKey("t", "D", 1)].outgoing
    prefill.session.handle(ev.Gathered(act.SlabKey(act.LegKey("t", "D", 1), gather), 32, 7), 1.0)
    prefill.session.handle(ev.Written(act.SlabKey(act.LegKey("t", "D", 1), gather)), 1.0)
    assert not of(act.Release, prefill.hear(msg.Delivered("t", 1, False), 2.0))
    assert not of(act.Release, prefill.session.tick(2.0))
    assert len(of(act.Release, prefill.session.tick(2.0 + LEASE_OVER_S))) == 1


def test_a_registration_without_a_request_ends_with_its_lease() -> None:
    """One of two consumers left and the request never came: the transfer stayed for ever."""
    prefill = Prefill()
    prefill.hear(msg.Register("u", 1, 8, "digest", 2, register().wants, register().credits))
    prefill.hear(msg.Abort("u", 1, "no longer wanted"))
    assert "u" in prefill.session.transfers
    prefill.session.tick(LEASE_OVER_S)
    assert "u" not in prefill.session.transfers


def test_only_a_slab_that_is_asked_for_is_written_again() -> None:
    """Every slab whose credit an Ack listed was, so that the second write could outlive the loan of the slot."""
    prefill = Prefill()
    prefill.hear(register())
    (gather,) = of(act.Gather, prefill.compute())
    prefill.gathered(gather)
    prefill.session.handle(ev.Written(gather.key), 0.0)
    later = TIMING.resend_s + 1
    assert not of(act.Write, prefill.hear(ack(1), later))
    assert len(of(act.Write, prefill.hear(ack(2, missing=(Credit(0, 0),)), later))) == 1
    assert not of(act.Write, prefill.hear(ack(3, missing=(Credit(0, 0),)), later)), "while that write is in flight"


def test_a_fencing_leg_is_not_confirmed() -> None:
    """A repeated Register of a leg that was ending got Alive, or a Refuse on which the consumer freed its slots."""
    prefill = Prefill()
    prefill.hear(register())
    prefill.compute()
    prefill.session.handle(ev.Withdrawn("t", "client left", True), 1.0)
    answer = prefill.hear(register())
    assert not said(msg.Alive, answer)
    assert not said(msg.Refuse, answer)


def test_a_repeated_hello_does_not_reconnect() -> None:
    """It would tear down the connection that writes are using."""
    prefill = Prefill()
    assert not of(act.Connect, prefill.hear(hello()))
    assert len(of(act.Connect, prefill.hear(hello(metadata=b"new ring")))) == 1


def test_a_send_slot_freed_by_an_expired_lease_is_used_at_once() -> None:
    """Other legs waited until the next event."""
    prefill = Prefill(num_slots=1)
    prefill.hear(register())
    (gather,) = of(act.Gather, prefill.compute())
    prefill.gathered(gather)
    prefill.session.handle(ev.Written(gather.key), 0.0)
    prefill.hear(hello(), peer="E")
    later = LEASE_OVER_S - 5
    assert not of(act.Gather, prefill.hear(register(num_consumers=2), later, peer="E"))
    assert [gather.tokens for gather in of(act.Gather, prefill.session.tick(LEASE_OVER_S))] == [Span(0, 8)]


def test_a_consumer_that_lent_no_slot_hears_when_the_prefill_begins() -> None:
    """It lent one only after its next heartbeat."""
    prefill = Prefill()
    prefill.hear(register(credits=()))
    (alive,) = said(msg.Alive, prefill.compute())
    assert [standing.state for standing in alive.standings] == [msg.ProducerState.STREAMING]
    assert not said(msg.Alive, prefill.compute())


def test_a_consumer_that_is_gone_leaves_nothing_behind() -> None:
    """Every restart of a consumer left its greeting and its connection behind."""
    prefill = Prefill()
    prefill.hear(register(), now=10.0)
    prefill.session.tick(2 * FORGET_S + 9.0)
    assert "D" in prefill.session.book.peers
    assert [forget.peer for forget in of(act.Forget, prefill.session.tick(2 * FORGET_S + 11.0))] == ["D"]
    assert (prefill.session.book.peers, prefill.session.book.heard_at) == ({}, {})
    assert [refuse.code for refuse in said(msg.Refuse, prefill.hear(register()))] == [msg.RefuseCode.HELLO_REQUIRED]


FOUR = tuple(Credit(slot, slot) for slot in range(4))


def test_an_engine_that_stalls_leaves_send_slots_to_others() -> None:
    """Slabs that nobody acknowledged held every send slot, for all other engines, until the lease was over."""
    prefill = Prefill(num_slots=4, advisor=Advisor("raw", 8))
    prefill.hear(msgspec.structs.replace(hello(), engine_id="E"), peer="E")
    for peer in ("D", "E"):
        prefill.hear(register(num_consumers=2, credits=FOUR), peer=peer)
    stalled = [gather.key.leg.peer for gather in of(act.Gather, prefill.compute())]
    assert sorted(stalled) == ["D", "D", "E"], "half for one, half of the rest for the other"


def test_ranks_of_one_engine_share_what_it_may_hold() -> None:
    prefill = Prefill(num_slots=4, advisor=Advisor("raw", 8))
    prefill.hear(hello(), peer="D's second rank")
    for peer in ("D", "D's second rank"):
        prefill.hear(register(num_consumers=2, credits=FOUR), peer=peer)
    assert len(of(act.Gather, prefill.compute())) == 2


def test_a_producer_that_stood_still_writes_nothing_under_old_credits() -> None:
    """What it had gathered before was written into slots that its consumer had given to others meanwhile."""
    prefill = Prefill()
    prefill.hear(register())
    (gather,) = of(act.Gather, prefill.compute())
    prefill.session.tick(0.1)
    actions = prefill.session.handle(ev.Gathered(gather.key, 32, 7), 0.2 + TIMING.peer_timeout_s)
    assert not of(act.Write, actions)
    assert [abort.reason for abort in said(msg.Abort, actions)] == ["the producer stood still for too long"]
    assert len(said(msg.Closed, actions)) == 1


def test_a_short_pause_of_a_producer_ends_nothing() -> None:
    """Negative control."""
    prefill = Prefill()
    prefill.hear(register())
    (gather,) = of(act.Gather, prefill.compute())
    prefill.session.tick(0.1)
    assert prefill.gathered(gather, TIMING.peer_timeout_s)


def test_what_lay_in_the_sockets_of_a_stopped_producer_starts_nothing() -> None:
    """A Register as old as the pause was served: its slots had been given to others, and the Abort came behind it."""
    prefill = Prefill()
    prefill.session.tick(0.1)
    assert prefill.hear(hello(), 0.2 + TIMING.peer_timeout_s) == []
    assert prefill.hear(register(), 0.2 + TIMING.peer_timeout_s) == []
    assert "t" in prefill.session.transfers, "the request itself goes on"
    assert said(msg.Alive, prefill.hear(register(), 0.3 + TIMING.peer_timeout_s + TIMING.retry_s)), "said again"
