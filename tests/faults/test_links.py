"""The control channel between D and P: cut, half open, slow. KV has a link of its own, see test_network.py."""

from __future__ import annotations

import time

import pytest

from tests.engines.rig.pair import new_transfer_id
from tests.engines.rig.testbed import MAX_TOKENS
from tests.faults.rig.ground import (
    LEASE_S,
    PEER_TIMEOUT_S,
    Ground,
    assert_at_rest,
    assert_both_serve,
    is_remote,
    through,
)
from tests.faults.rig.moments import Moment, reach
from tests.faults.rig.record import RECORD

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

BRIEF_S = 1.0
assert BRIEF_S < PEER_TIMEOUT_S


def assert_recomputed(moment: Moment, fault: str) -> None:
    """D gives P up, answers, and both are at rest although they still cannot talk."""
    begun = time.monotonic()
    answer = moment.decoded()
    RECORD.note(fault, moment.state, "D computes the prompt itself", time.monotonic() - begun)
    assert answer.token_ids == moment.reference
    assert not moment.remote(answer), "the transfer was over before the fault"
    assert moment.reasons()
    assert moment.on_prefill is not None
    moment.pair.prefill.wait(moment.on_prefill)
    assert_at_rest(moment.pair.prefill, moment.pair.decode, limit_s=LEASE_S + PEER_TIMEOUT_S)


def assert_serves_through(moment: Moment, fault: str) -> None:
    """The same link, restored, serves a remote prefill again."""
    pair, begun = moment.pair, time.monotonic()
    for _ in range(10):
        pair.reset()
        transfer_id = new_transfer_id("restored")
        params = through(moment.relay, pair.consumer_params(transfer_id))
        on_prefill = pair.submit_prefill(moment.prompt, transfer_id)
        answer = pair.decode.wait(pair.decode.submit(moment.prompt, MAX_TOKENS, params))
        pair.prefill.wait(on_prefill)
        assert answer.token_ids == moment.reference
        if is_remote(answer):
            RECORD.note(fault, "restored", "served remotely over the same link", time.monotonic() - begun)
            return
    raise AssertionError(f"no remote prefill over the restored link: {moment.reasons()}")


def test_cut_for_good_and_restored(ground: Ground) -> None:
    moment = reach(ground, "streaming")
    moment.relay.cut()
    assert_recomputed(moment, "control link cut")
    moment.relay.restore()
    assert_serves_through(moment, "control link cut")
    assert_both_serve(ground)


def test_half_open_and_restored(ground: Ground) -> None:
    """Connections stay open and nothing passes: silence is all there is to notice."""
    moment = reach(ground, "streaming")
    moment.relay.hold()
    assert_recomputed(moment, "control link half open")
    moment.relay.restore()
    assert_serves_through(moment, "control link half open")
    assert_both_serve(ground)


def test_cut_for_a_moment(ground: Ground) -> None:
    moment = reach(ground, "streaming")
    begun = time.monotonic()
    moment.relay.cut()
    time.sleep(BRIEF_S)
    moment.relay.restore()
    answer = moment.decoded()
    RECORD.note("control link cut for 1 s", "streaming", "served remotely all the same", time.monotonic() - begun)
    assert answer.token_ids == moment.reference
    assert moment.remote(answer), moment.reasons()
    assert_at_rest(moment.pair.prefill, moment.pair.decode, limit_s=LEASE_S)


def test_slow_link(ground: Ground) -> None:
    moment = reach(ground, "streaming")
    begun = time.monotonic()
    moment.relay.slow(0.3)
    answer = moment.decoded()
    RECORD.note("control link slow (0.3 s)", "streaming", "served remotely all the same", time.monotonic() - begun)
    assert answer.token_ids == moment.reference
    assert moment.remote(answer), moment.reasons()
    moment.relay.restore()
    assert_at_rest(moment.pair.prefill, moment.pair.decode, limit_s=LEASE_S)
