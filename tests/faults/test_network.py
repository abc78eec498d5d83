"""The network between P and D: lost for a moment, lost for long, lost for KV only. Needs root."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from benchmarks.netns import CannotShape
from tests.engines.rig.testbed import Testbed
from tests.faults.rig.ground import LEASE_S, PEER_TIMEOUT_S, WRITES_END_S, Ground, assert_at_rest, first_remote_s
from tests.faults.rig.moments import Moment, stream
from tests.faults.rig.network import BreakableLink
from tests.faults.rig.record import RECORD

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

BRIEF_S = 1.0
assert BRIEF_S < PEER_TIMEOUT_S


@pytest.fixture(scope="module")
def link() -> Iterator[BreakableLink]:
    link = BreakableLink()
    try:
        with link:
            yield link
    except CannotShape as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def apart_ground(testbed: Testbed, link: BreakableLink) -> Ground:
    return Ground(testbed, label="apart", link=link)


@pytest.fixture
def apart(apart_ground: Ground, link: BreakableLink, no_servers: None) -> Iterator[Ground]:
    """A pair of engines in two namespaces."""
    yield apart_ground
    link.mend()


def assert_recomputed_and_restored(ground: Ground, moment: Moment, link: BreakableLink, fault: str) -> None:
    begun = time.monotonic()
    answer = moment.decoded()
    RECORD.note(fault, "streaming", "D computes the prompt itself", time.monotonic() - begun)
    assert answer.token_ids == moment.reference
    assert not moment.remote(answer), "the transfer was over before the fault"
    assert moment.reasons()
    assert moment.on_prefill is not None
    moment.pair.prefill.wait(moment.on_prefill)
    back_s = assert_at_rest(moment.pair.prefill, moment.pair.decode, limit_s=LEASE_S + WRITES_END_S)
    RECORD.note(fault, "streaming", "all blocks back on both, the link still cut", back_s)
    link.mend()
    RECORD.note(fault, "restored", "a remote prefill is served", first_remote_s(ground))


def test_link_lost_for_long(apart: Ground, link: BreakableLink) -> None:
    moment = stream(apart)
    link.cut()
    assert_recomputed_and_restored(apart, moment, link, "network cut")


def test_link_lost_for_kv_only(apart: Ground, link: BreakableLink) -> None:
    """P answers every heartbeat and no byte of KV comes: D sees that nothing moves."""
    moment = stream(apart)
    link.cut_data(apart.control_port)
    assert_recomputed_and_restored(apart, moment, link, "network cut for KV only")


def test_link_lost_for_a_moment(apart: Ground, link: BreakableLink) -> None:
    moment = stream(apart)
    begun = time.monotonic()
    link.cut()
    time.sleep(BRIEF_S)
    link.mend()
    answer = moment.decoded()
    RECORD.note("network cut for 1 s", "streaming", "served remotely all the same", time.monotonic() - begun)
    assert answer.token_ids == moment.reference
    assert moment.remote(answer), moment.reasons()
    assert_at_rest(moment.pair.prefill, moment.pair.decode, limit_s=LEASE_S)
