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
KNOWN_S = 0.2
"""Time in flight after which the wire is known: a first burst that a shaper lets through must not count for much."""
EVIDENCE_S, TRUST_S = 0.05, 300.0
"""What was measured with a codec counts from this long on, and for this long after it was used last."""
BUSY_MEMORY_S = 2.0
PAUSE_S = 1.0
"""A longer time without writes lies between transfers and says nothing of how busy they keep the wire."""
OPENING_BYTES, FIRST_BYTES, GROWTH = 64 << 10, 256 << 10, 4
LEARNING_S = 0.1
"""Until the wire is known, no more is in flight than it carries in this time: slabs in flight are past changing."""


class _Goodput:
    """Bytes over seconds, the recent ones above all."""

    def __init__(self) -> None:
        self.num_bytes = self.seconds = 0.0
        self.used_at = -math.inf

    @property
    def bytes_per_s(self) -> float | None:
        """None before the first sample."""
        return self.num_bytes / self.seconds if self.seconds else None

    def add(self, num_bytes: int, seconds: float, now: float) -> None:
        """Take in one sample."""
        kept = math.exp(-seconds / MEMORY_S)
        self.num_bytes = kept * self.num_bytes + num_bytes
        self.seconds = kept * self.seconds + seconds
        self.used_at = now


class WireMeter:
    """Goodput towards one peer in encoded bytes per second. Times are seconds.

    It counts only while writes are in flight; a sample of short writes may raise it, never lower it. A wire that is not
    full lets single slabs pass in bursts and seems fast: what counts is when more writes are in flight as one ends.
    """

    def __init__(self) -> None:
        self.busy_share = 0.0
        self._wire = _Goodput()
        self._full = _Goodput()
        self._goodputs: dict[str, _Goodput] = {}
        self._seen_s = 0.0
        self._limit_bytes = OPENING_BYTES
        self._in_flight: dict[Hashable, tuple[str, int, float]] = {}
        self._idle_since = -math.inf
        self._begin_sample(0.0)

    @property
    def bytes_per_s(self) -> float | None:
        """None until some writes took long enough to be judged by; those of a full wire are, once there are any."""
        return self._full.bytes_per_s or self._wire.bytes_per_s

    @property
    def known(self) -> bool:
        """True once enough was seen to choose a codec by."""
        return self._seen_s >= KNOWN_S

    @property
    def limit_bytes(self) -> float:
        """Bytes that may be in flight: few until the wire is known, so that a slow one is not filled with raw KV."""
        return math.inf if self.known else max(self._limit_bytes, LEARNING_S * (self.bytes_per_s or 0.0))

    def measured(self, now: float) -> dict[str, float]:
        """Goodput of each codec with which the wire was full not long ago."""
        return {
            codec: goodput.num_bytes / goodput.seconds
            for codec, goodput in self._goodputs.items()
            if goodput.seconds >= EVIDENCE_S and now - goodput.used_at <= TRUST_S
        }

    def started(self, write: Hashable, codec: str, num_bytes: int, now: float) -> None:
        """A write of `num_bytes` began."""
        if not self._in_flight:
            idle_s = now - self._idle_since
            self._share(0.0, idle_s if idle_s <= PAUSE_S else 0.0)
            self._begin_sample(now)
        self._in_flight[write] = (codec, num_bytes, now)

    def ended(self, write: Hashable, arrived: bool, now: float) -> None:
        """A write ended; unknown ones are ignored."""
        codec, num_bytes, started_at = self._in_flight.pop(write, ("", 0, 0.0))
        if not num_bytes:
            return
        self._sample_codecs.add(codec if arrived else "")
        self._sample_bytes += num_bytes
        self._flight_s.append(now - started_at)
        if not self._in_flight or now - self._sample_since >= SAMPLE_S:
            self._take_sample(now - self._sample_since, now)
            self._begin_sample(now)
            self._idle_since = now

    def _begin_sample(self, now: float) -> None:
        self._sample_since = now
        self._sample_bytes = 0
        self._sample_codecs: set[str] = set()
        self._flight_s: list[float] = []

    def _take_sample(self, elapsed_s: float, now: float) -> None:
        self._share(1.0, elapsed_s)
        if self._limit_bytes < FIRST_BYTES:  # the first write sets up the connection
            self._limit_bytes = FIRST_BYTES
            return
        codec = self._sample_codecs.pop()
        if self._sample_codecs or not codec:  # several codecs, or a write that failed
            return
        rate = self._sample_bytes / max(elapsed_s, 1e-9)
        full, known = bool(self._in_flight), self._wire.bytes_per_s or 0.0
        if sum(self._flight_s) < CREDIBLE_S * len(self._flight_s) and not 0.0 < known < rate:
            self._limit_bytes = max(self._limit_bytes, GROWTH * self._sample_bytes)
            return
        self._wire.add(self._sample_bytes, elapsed_s, now)
        self._seen_s += elapsed_s
        if full:
            self._full.add(self._sample_bytes, elapsed_s, now)
            self._goodputs.setdefault(codec, _Goodput()).add(self._sample_bytes, elapsed_s, now)

    def _share(self, busy: float, seconds: float) -> None:
        self.busy_share += (busy - self.busy_share) * -math.expm1(-seconds / BUSY_MEMORY_S)
