"""How long a prefill rank keeps KV for a consumer, and whose it gives up first; what counts as a producer's silence."""

from __future__ import annotations

from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.session.states import ProducerPhase
from pdkv_connector.types import Credit, Span
from tests.unit.session.dialogue import NUM_TOKENS, TIMING, Decode, Prefill, of, register, said

STALE_S = TIMING.reclaim_s + 0.1
BEAT = msg.Heartbeat((("t", 1),))


def released(actions: list[act.Action]) -> list[str]:
    return [release.transfer_id for release in of(act.Release, actions)]


def press(prefill: Prefill, now: float) -> list[act.Action]:
    return prefill.session.handle(ev.Pressed(), now)


def finished(prefill: Prefill, *names: str) -> None:
    """Transfers that the engine has computed and waits to get back."""
    for name in names:
        prefill.session.handle(ev.Offered(name, NUM_TOKENS, "digest"), 0.0)
        prefill.session.handle(ev.Ready(name, Span(0, 1), Span(0, NUM_TOKENS)), 0.0)
        prefill.session.handle(ev.Finished(name), 0.0)


# -- blocks that the engine needs -------------------------------------------------------------------------------------


def test_the_least_promising_is_reclaimed_first_and_one_at_a_time() -> None:
    """Nobody asked for `idle`; the consumer of `t` fell silent; that of `live` is heard of."""
    prefill = Prefill()
    finished(prefill, "t", "live", "idle")
    for name in ("t", "live"):
        prefill.hear(msg.Register(name, 1, NUM_TOKENS, "digest", 1, register().wants, ()))
    prefill.hear(msg.Heartbeat((("live", 1),)), STALE_S)
    assert released(press(prefill, STALE_S)) == ["idle"]
    assert released(press(prefill, STALE_S + TIMING.retry_s / 2)) == [], "its blocks may be enough"
    actions = press(prefill, STALE_S + TIMING.retry_s)
    assert released(actions) == ["t"]
    assert [abort.transfer_id for abort in said(msg.Abort, actions)] == ["t"]
    assert released(press(prefill, STALE_S + 2 * TIMING.retry_s)) == []
    assert list(prefill.session.transfers) == ["live"]


def test_what_nothing_moves_of_for_a_lease_is_reclaimed_though_its_consumer_is_heard_of() -> None:
    """Its consumer had no slot for it; those who held them waited for these very blocks."""
    prefill = Prefill()
    finished(prefill, "t")
    prefill.hear(msg.Register("t", 1, NUM_TOKENS, "digest", 1, register().wants, ()))
    prefill.hear(BEAT, TIMING.lease_s)
    assert released(press(prefill, TIMING.lease_s)) == [], "not yet"
    prefill.hear(BEAT, TIMING.lease_s + 0.2)
    actions = press(prefill, TIMING.lease_s + 0.2)
    assert released(actions) == ["t"]
    assert [abort.reason for abort in said(msg.Abort, actions)] == [
        "reclaimed: the prefill engine needs blocks, no consumer lent a slot for long"
    ]


def test_without_pressure_nothing_is_reclaimed() -> None:
    """Negative control."""
    prefill = Prefill()
    finished(prefill, "idle")
    assert released(prefill.session.tick(STALE_S)) == []


def test_what_has_just_finished_is_left_to_its_consumer() -> None:
    prefill = Prefill()
    finished(prefill, "idle")
    assert released(press(prefill, TIMING.reclaim_s)) == []


def test_a_request_that_runs_is_not_reclaimed() -> None:
    prefill = Prefill()
    prefill.compute()
    press(prefill, STALE_S)
    assert "t" in prefill.session.transfers


def test_a_consumer_that_comes_late_learns_that_the_kv_was_reclaimed() -> None:
    prefill = Prefill()
    finished(prefill, "t")
    press(prefill, STALE_S)
    (refuse,) = said(msg.Refuse, prefill.hear(register(), STALE_S))
    assert refuse.code is msg.RefuseCode.ENDED
    assert "reclaimed: the prefill engine needs blocks" in refuse.reason


def test_blocks_are_not_given_back_while_a_slab_is_read_from_them() -> None:
    prefill = Prefill()
    finished(prefill, "t")
    (gather,) = of(act.Gather, prefill.hear(register()))
    assert released(press(prefill, STALE_S)) == []
    assert prefill.session.transfers["t"].phase is ProducerPhase.FENCING
    assert released(prefill.session.handle(ev.Gathered(gather.key, 32, 7), STALE_S)) == ["t"]


# -- a lease is no shorter than what is left to send takes -------------------------------------------------------------


def test_a_lease_lasts_as_long_as_the_rest_will_take() -> None:
    prefill = Prefill()
    prefill.advisor.s_per_byte = 2 * TIMING.lease_s / (2 * 2 * NUM_TOKENS)
    finished(prefill, "t")
    prefill.hear(register(credits=()))
    assert released(prefill.session.tick(1.9 * TIMING.lease_s)) == []
    assert released(prefill.session.tick(2.1 * TIMING.lease_s)) == ["t"]


def test_a_lease_of_an_unknown_wire_is_the_configured_one() -> None:
    """Negative control."""
    prefill = Prefill()
    finished(prefill, "t")
    prefill.hear(register(credits=()))
    assert released(prefill.session.tick(1.1 * TIMING.lease_s)) == ["t"]


def test_a_prediction_does_not_keep_blocks_for_ever() -> None:
    prefill = Prefill()
    prefill.advisor.s_per_byte = 1e9
    finished(prefill, "t")
    prefill.hear(register(credits=()))
    assert released(prefill.session.tick(1.01 * TIMING.stall_timeout_s)) == ["t"]


def test_nothing_is_written_for_a_consumer_that_may_have_given_its_slots_to_others() -> None:
    """It counts on that after `Timing.quarantine_s`, however long its blocks are kept here."""
    prefill = Prefill()
    prefill.advisor.s_per_byte = 1e9
    prefill.hear(register(credits=(Credit(0, 0),)))
    late = 1.1 * TIMING.lease_s
    assert of(act.Gather, prefill.compute(late)) == []
    assert len(of(act.Gather, prefill.hear(BEAT, late))) == 1, "it is back"


# -- silence ----------------------------------------------------------------------------------------------------------


def lost(actions: list[act.Action]) -> bool:
    return any("did not answer" in fail.reason for fail in of(act.Fail, actions))


def test_a_process_that_stood_still_does_not_take_its_own_absence_for_a_producers() -> None:
    decode = Decode()
    decode.want()
    decode.welcome()
    decode.alive()
    decode.session.tick(0.0)
    late = 10 * TIMING.peer_timeout_s
    assert not lost(decode.session.tick(late))
    decode.alive(now=late)
    assert decode.session.transfers["t"].open


def test_a_producer_that_stays_silent_is_noticed() -> None:
    """Negative control: the same silence, listened to. It is noticed within the configured bound and one tick."""
    decode = Decode()
    decode.want()
    decode.welcome()
    decode.alive()
    noticed = next(now for now in (0.25 * tick for tick in range(1000)) if lost(decode.session.tick(now)))
    assert TIMING.peer_timeout_s < noticed <= TIMING.peer_timeout_s + 0.5


def test_a_slow_producer_is_not_a_silent_one() -> None:
    decode = Decode()
    decode.want()
    decode.welcome()
    for tick in range(1000):
        now = 0.25 * tick
        assert not lost(decode.session.tick(now))
        if now % (0.9 * TIMING.peer_timeout_s) < 0.25:
            decode.alive(now=now)
