"""How fast the wire towards one peer is, judged by the writes that went over it."""

from __future__ import annotations

import math
from collections.abc import Hashable

SAMPLE_S = 0.02
"""Writes are counted together over at least this long, or until none is in flight."""
CREDIBLE_S = 0.005
"""A write that took less may have spent its time waiting to be polled: it shows how fast the wire is at least."""
MEMORY_S = 0.3
"""Time in flight after which older writes count for about a third."""
BUSY_MEMORY_S = 2.0
PAUSE_S = 1.0
"""A longer time without writes lies between transfers and says nothing of how busy they keep the wire."""
FIRST_BYTES = 256 << 10
GROWTH = 4
WORK_BYTES = 64 << 20
LEAST_WORK_BYTES = 1 << 20


class WireMeter:
    """Goodput towards one peer in encoded bytes per second, and what else the writes show. Times are seconds.

    Goodput is bytes over seconds while writes are in flight, the recent ones above all; a sample of short writes may
    raise it, never lower it.
    """

    def __init__(self) -> None:
        self.busy_share = 0.0
        self._bytes = self._seconds = 0.0
        self._limit_bytes = FIRST_BYTES
        self._in_flight: dict[Hashable, tuple[int, float]] = {}
        self._idle_since = -math.inf
        self._sample_since = 0.0
        self._sample_bytes = self._num_arrived = self._num_failed = 0
        self._flight_s = 0.0
        self._work_s = self._work_bytes = 0.0

    @property
    def bytes_per_s(self) -> float | None:
        """Goodput; None until some writes took long enough to be judged by."""
        return self._bytes / self._seconds if self._seconds else None

    @property
    def limit_bytes(self) -> float:
        """Bytes that may be in flight: few towards a new peer, so that a slow wire is known before it is full."""
        return math.inf if self.bytes_per_s is not None else self._limit_bytes

    @property
    def work_s_per_byte(self) -> float:
        """Seconds of our own thread that the transport takes for one encoded byte."""
        return self._work_s / self._work_bytes if self._work_bytes >= LEAST_WORK_BYTES else 0.0

    @property
    def busy(self) -> bool:
        """True while a write is in flight."""
        return bool(self._in_flight)

    def started(self, write: Hashable, num_bytes: int, now: float) -> None:
        """A write of `num_bytes` began."""
        if not self._in_flight:
            idle_s = now - self._idle_since
            self._share(0.0, idle_s if idle_s <= PAUSE_S else 0.0)
            self._begin_sample(now)
        self._in_flight[write] = (num_bytes, now)

    def ended(self, write: Hashable, arrived: bool, now: float) -> None:
        """A write ended; unknown ones are ignored."""
        num_bytes, started_at = self._in_flight.pop(write, (0, 0.0))
        if not num_bytes:
            return
        self._num_arrived += arrived
        self._num_failed += not arrived
        self._sample_bytes += num_bytes
        self._flight_s += now - started_at
        if not self._in_flight or now - self._sample_since >= SAMPLE_S:
            self._take_sample(now - self._sample_since)
            self._begin_sample(now)
            self._idle_since = now

    def worked(self, seconds: float) -> None:
        """The transport took this much of our thread while writes were in flight."""
        self._work_s += seconds

    def _begin_sample(self, now: float) -> None:
        self._sample_since = now
        self._sample_bytes = self._num_arrived = self._num_failed = 0
        self._flight_s = 0.0

    def _take_sample(self, elapsed_s: float) -> None:
        self._share(1.0, elapsed_s)
        self._count_work(self._sample_bytes)
        if self._num_failed:
            return
        credible = self._flight_s >= CREDIBLE_S * self._num_arrived
        faster = bool(self._seconds) and self._sample_bytes * self._seconds > self._bytes * elapsed_s
        if credible or faster:
            kept = math.exp(-elapsed_s / MEMORY_S)
            self._bytes = kept * self._bytes + self._sample_bytes
            self._seconds = kept * self._seconds + elapsed_s
        elif not self._seconds:
            self._limit_bytes = max(self._limit_bytes, GROWTH * self._sample_bytes)

    def _share(self, busy: float, seconds: float) -> None:
        self.busy_share += (busy - self.busy_share) * -math.expm1(-seconds / BUSY_MEMORY_S)

    def _count_work(self, num_bytes: int) -> None:
        self._work_bytes += num_bytes
        if self._work_bytes > WORK_BYTES:
            self._work_s, self._work_bytes = self._work_s / 2, self._work_bytes / 2
