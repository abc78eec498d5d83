"""SIGKILL of P or D in each state of the protocol, and a restart on the same address."""

from __future__ import annotations

import time

import pytest

from tests.engines.rig.child_process import EngineDied
from tests.faults.rig.ground import (
    LEASE_S,
    PEER_TIMEOUT_S,
    Ground,
    assert_at_rest,
    assert_both_serve,
    first_remote_s,
)
from tests.faults.rig.moments import reach
from tests.faults.rig.record import RECORD

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.mark.parametrize("state", ["awaiting_request", "awaiting_consumer", "streaming", "fencing"])
def test_prefill_engine_killed(ground: Ground, state: str) -> None:
    """D notices and computes the prompt itself; the restarted P serves it again."""
    moment = reach(ground, state)
    prefill, decode = moment.pair.prefill, moment.pair.decode
    killed = time.monotonic()
    prefill.process.kill()
    if state == "fencing":
        decode.process.resume()
    answer = moment.decoded()
    RECORD.note("kill -9 of P", state, "D computes the prompt itself", time.monotonic() - killed)
    assert answer.token_ids == moment.reference
    assert not moment.remote(answer), "P had delivered before it was killed"
    assert moment.reasons()
    assert_at_rest(decode, limit_s=PEER_TIMEOUT_S)
    if state == "streaming":
        assert moment.on_prefill is not None
        with pytest.raises(EngineDied):
            prefill.wait(moment.on_prefill)
    ground.pair()
    RECORD.note("kill -9 of P", state, "P, restarted and ready, serves D", first_remote_s(ground))
    assert_both_serve(ground)


@pytest.mark.parametrize("state", ["connecting", "registering", "receiving", "delivered"])
def test_decode_engine_killed(ground: Ground, state: str) -> None:
    """P's blocks come back by its lease at the latest; the restarted D is served again."""
    moment = reach(ground, state)
    prefill, decode = moment.pair.prefill, moment.pair.decode
    decode.process.kill()
    killed = time.monotonic()
    assert moment.on_prefill is not None
    assert moment.on_decode is not None
    prefill.wait(moment.on_prefill)
    assert_at_rest(prefill, limit_s=LEASE_S + PEER_TIMEOUT_S)
    RECORD.note("kill -9 of D", state, "P's blocks are back", time.monotonic() - killed)
    with pytest.raises(EngineDied):
        decode.wait(moment.on_decode)
    ground.pair()
    RECORD.note("kill -9 of D", state, "D, restarted and ready, is served", first_remote_s(ground))
    assert_both_serve(ground)
