"""Goodput is what the wire carries, not what happens to be sent: bursts, pauses and small slabs do not mislead it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdkv_connector.policy.wire_meter import FIRST_BYTES, GROWTH, OPENING_BYTES, TRUST_S, WireMeter

SLAB = 2_000_000


class Link:
    """A wire of `rate` bytes per second that takes writes one after the other; completions are seen `poll_s` late."""

    def __init__(self, rate: float, poll_s: float = 0.001) -> None:
        self.meter = WireMeter()
        self.rate = rate
        self.poll_s = poll_s
        self.codec = "raw"
        self.now = 100.0
        self._numbers = 0
        self.burst(OPENING_BYTES)

    def burst(self, *sizes: int) -> None:
        """Start all these writes at once and see them end."""
        numbers = list(range(self._numbers, self._numbers + len(sizes)))
        self._numbers += len(sizes)
        for number, num_bytes in zip(numbers, sizes, strict=True):
            self.meter.started(number, self.codec, num_bytes, self.now)
        for number, num_bytes in zip(numbers, sizes, strict=True):
            self.now += num_bytes / self.rate
            self.meter.ended(number, True, self.now + self.poll_s)
        self.now += self.poll_s

    def rest(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("rate", [1e5, 12.5e6, 50e6, 125e6, 1e9])
def test_large_bursts_show_the_rate(rate: float) -> None:
    link = Link(rate)
    for _ in range(10):
        link.burst(*[SLAB] * 8)
        link.rest(0.3)
    assert link.meter.bytes_per_s == pytest.approx(rate, rel=0.1)


def test_one_slab_on_a_slow_wire_is_enough() -> None:
    link = Link(12.5e6)
    link.burst(FIRST_BYTES)
    assert not link.meter.known
    assert link.meter.bytes_per_s == pytest.approx(12.5e6, rel=0.1)


def test_small_quick_slabs_say_nothing_against_a_wire() -> None:
    """Each waited a millisecond to be polled: 64 MB/s at most, on a wire of 2 GB/s."""
    link = Link(2e9)
    for _ in range(100):
        link.burst(64_000)
    assert not link.meter.measured(link.now)
    link.burst(*[SLAB] * 64)
    measured = link.meter.measured(link.now)
    assert measured
    for _ in range(1000):
        link.burst(64_000)
    assert link.meter.measured(link.now) == measured


def test_the_first_write_does_not_count() -> None:
    """It sets the connection up, which took 16 ms where the write itself takes none."""
    meter = WireMeter()
    assert meter.limit_bytes == OPENING_BYTES
    meter.started("first", "raw", OPENING_BYTES, 1.0)
    meter.ended("first", True, 1.016)
    assert meter.bytes_per_s is None


def test_a_slow_wire_is_known_after_few_slabs_and_is_never_full_before() -> None:
    link, num_slabs = Link(12.5e6), 0
    while not link.meter.known:
        assert link.meter.limit_bytes <= max(FIRST_BYTES, 0.15 * link.rate)
        link.burst(int(link.meter.limit_bytes))
        num_slabs += 1
    assert num_slabs <= 4
    assert link.meter.limit_bytes == float("inf")


def test_a_fast_wire_is_soon_unlimited() -> None:
    link, limits = Link(20e9), []
    for _ in range(4):
        limits.append(link.meter.limit_bytes)
        link.burst(int(link.meter.limit_bytes))
    assert limits == [FIRST_BYTES * GROWTH**number for number in range(4)]


def test_each_codec_has_its_own_goodput_for_a_while() -> None:
    """Writes of two codecs in one sample say nothing of either."""
    link = Link(1e9)
    link.burst(*[SLAB] * 48)
    link.codec, link.rate = "split", 0.5e9
    link.burst(*[SLAB] * 48)
    measured = link.meter.measured(link.now)
    assert measured == {"raw": pytest.approx(1e9, rel=0.1), "split": pytest.approx(0.5e9, rel=0.1)}
    link.meter.started("a", "raw", SLAB, link.now)
    link.meter.started("b", "split", SLAB, link.now)
    link.meter.ended("a", True, link.now + 0.01)
    link.meter.ended("b", True, link.now + 1.0)
    assert link.meter.measured(link.now) == measured
    assert link.meter.measured(link.now + TRUST_S + 2.0) == {}


def test_a_burst_that_a_shaper_lets_through_does_not_spoil_a_slow_wire() -> None:
    link = Link(12.5e6)
    for _ in range(4):
        link.burst(SLAB)
    link.rate = 1e9
    link.burst(SLAB // 2)
    assert link.meter.bytes_per_s is not None
    assert 12e6 < link.meter.bytes_per_s < 20e6


@pytest.mark.parametrize(("before", "after"), [(125e6, 12.5e6), (1e9, 12.5e6), (12.5e6, 125e6)])
def test_a_changed_wire_is_noticed_within_two_seconds(before: float, after: float) -> None:
    link = Link(before)
    for _ in range(20):
        link.burst(*[SLAB] * 4)
    changed_at, link.rate = link.now, after
    while link.now < changed_at + 2.0:
        link.burst(*[SLAB] * 4)
    assert link.meter.bytes_per_s == pytest.approx(after, rel=0.1)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_busy_share_is_that_of_the_transfers(share: float) -> None:
    link = Link(10e6, poll_s=0.0)
    for number in range(200):
        link.burst(200_000)
        link.rest(60.0 if number % 50 == 49 else 0.02 * (1 - share) / share)
    assert link.meter.busy_share == pytest.approx(share, abs=0.1)


def test_a_failed_write_is_no_measurement() -> None:
    link = Link(12.5e6)
    link.burst(SLAB)
    known = link.meter.bytes_per_s
    link.meter.started("lost", "raw", SLAB, link.now)
    link.meter.ended("lost", False, link.now + 10.0)
    assert link.meter.bytes_per_s == known


def test_an_unknown_write_is_ignored() -> None:
    meter = WireMeter()
    meter.ended("nobody's", True, 1.0)
    assert meter.bytes_per_s is None


STEPS = st.lists(
    st.tuples(st.sampled_from(("start", "arrive", "fail")), st.integers(0, 5), st.floats(0, 0.5)), max_size=60
)


@given(STEPS)
def test_no_order_of_events_breaks_it(steps: list[tuple[str, int, float]]) -> None:
    meter, now = WireMeter(), 0.0
    flying: set[int] = set()
    for do, number, elapsed_s in steps:
        now += elapsed_s
        if do == "start" and number not in flying:
            meter.started(number, "raw", 1 << 16, now)
            flying.add(number)
        elif do != "start":
            meter.ended(number, do == "arrive", now)
            flying.discard(number)
        assert 0.0 <= meter.busy_share <= 1.0
        assert meter.limit_bytes > 0
        assert meter.bytes_per_s is None or meter.bytes_per_s > 0
