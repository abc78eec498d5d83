"""SIGSTOP and SIGCONT: a peer that stands still is noticed within `peer_timeout_s`, a slow one is waited for.

A stopped process keeps its connections: the kernel takes bytes for it and answers for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.engines.rig.process import EngineProcess
from tests.faults.rig.ground import (
    LEASE_S,
    PEER_TIMEOUT_S,
    WRITES_END_S,
    Ground,
    assert_at_rest,
    assert_both_serve,
)
from tests.faults.rig.moments import reach
from tests.faults.rig.record import RECORD

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

NUM_PAUSES, PAUSE_S, BREATH_S = 3, 0.8, 0.4
assert PAUSE_S < PEER_TIMEOUT_S < LEASE_S


@contextmanager
def paused(engine: EngineProcess) -> Iterator[None]:
    """The engine stands still meanwhile."""
    engine.process.pause()
    try:
        yield
    finally:
        engine.process.resume()


def stutter(engine: EngineProcess) -> None:
    """Pauses each shorter than what a peer is given up after."""
    for _ in range(NUM_PAUSES):
        with paused(engine):
            time.sleep(PAUSE_S)
        time.sleep(BREATH_S)


@pytest.mark.parametrize("state", ["awaiting_request", "awaiting_consumer", "streaming"])
def test_prefill_engine_stopped(ground: Ground, state: str) -> None:
    """D answers while P still stands; P, running again, gives its blocks back and serves."""
    moment = reach(ground, state)
    prefill, decode = moment.pair.prefill, moment.pair.decode
    with paused(prefill):
        stopped = time.monotonic()
        answer = moment.decoded()
        RECORD.note("SIGSTOP of P", state, "D computes the prompt itself", time.monotonic() - stopped)
        assert answer.token_ids == moment.reference
        assert not moment.remote(answer), "P had delivered before it was stopped"
        assert any("did not answer" in reason for reason in moment.reasons()), moment.reasons()
        assert_at_rest(decode, limit_s=PEER_TIMEOUT_S)
    back_s = assert_at_rest(prefill, limit_s=LEASE_S + PEER_TIMEOUT_S)
    RECORD.note("SIGCONT of P", state, "P's blocks are back", back_s)
    assert_both_serve(ground)


@pytest.mark.parametrize("state", ["registering", "receiving", "delivered"])
def test_decode_engine_stopped(ground: Ground, state: str) -> None:
    """P takes its blocks back while D still stands; D, running again, answers."""
    moment = reach(ground, state)
    prefill, decode = moment.pair.prefill, moment.pair.decode
    with paused(decode):
        stopped = time.monotonic()
        assert moment.on_prefill is not None
        assert prefill.wait(moment.on_prefill).finish_reason == "length"
        assert_at_rest(prefill, limit_s=LEASE_S + WRITES_END_S)
        RECORD.note("SIGSTOP of D", state, "P's blocks are back", time.monotonic() - stopped)
        moment.relay.restore()
    resumed = time.monotonic()
    answer = moment.decoded()
    RECORD.note("SIGCONT of D", state, "D answers", time.monotonic() - resumed)
    assert answer.token_ids == moment.reference
    assert moment.remote(answer) == (state == "delivered"), "what had come is used, what had not is computed"
    assert_at_rest(decode, limit_s=LEASE_S + PEER_TIMEOUT_S)
    assert_both_serve(ground)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_slow_engine_is_waited_for(ground: Ground, side: str) -> None:
    """An engine that stands still again and again, each time for less than the time-out, still transfers."""
    moment = reach(ground, "streaming")
    begun = time.monotonic()
    stutter(moment.pair.prefill if side == "prefill" else moment.pair.decode)
    answer = moment.decoded()
    RECORD.note(f"slow {side} engine", "streaming", "served remotely all the same", time.monotonic() - begun)
    assert answer.token_ids == moment.reference
    assert moment.remote(answer), moment.reasons()
    assert_at_rest(moment.pair.prefill, moment.pair.decode, limit_s=LEASE_S)


def test_a_paused_engine_does_not_answer(ground: Ground) -> None:
    """Control: while it is paused an engine really does nothing."""
    decode = ground.pair().decode
    with paused(decode):
        decode.process.send({"call": -1, "do": "counters"})
        time.sleep(PAUSE_S)
        assert -1 not in decode._replies
    assert decode.num_requests() == 0
    assert decode._replies.pop(-1)
