"""Decides when a report is due, and what has changed since the last one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pdkv_connector.adapters.vllm.stats import PDKVStats
from pdkv_connector.runtime.runtime import Runtime
from pdkv_connector.telemetry.metrics import series
from pdkv_connector.telemetry.stats import Stats
from pdkv_connector.telemetry.tally import Tally

INTERVAL_S = 1.0
"""Reports of one rank are this far apart while transfers go on: most steps pay for a clock reading only."""


def totals(stats: Stats) -> dict[str, float]:
    """The value of each counter since the process began."""
    return {
        "sent_slabs": stats.sent.slabs,
        "sent_kv_bytes": stats.sent.raw_bytes,
        "sent_wire_bytes": stats.sent.encoded_bytes,
        "resent_slabs": sum(peer.resends for peer in stats.peers),
        "received_slabs": stats.received.slabs,
        "received_kv_bytes": stats.received.raw_bytes,
        "received_wire_bytes": stats.received.encoded_bytes,
        "encode_seconds": sum(codec.encode_s for codec in stats.codecs),
        "decode_seconds": sum(codec.decode_s for codec in stats.codecs),
        **stats.counts,
    }


class _Changes:
    """Remembers what was reported, and tells what is new."""

    def __init__(self) -> None:
        self._totals: Mapping[str, float] = {}
        self._gauges: Mapping[str, float] = {}

    def take(self, new: Mapping[str, float], gauges: Mapping[str, float]) -> PDKVStats:
        """What was added to the totals since last time, and which gauges are not as they were."""
        report = PDKVStats()
        increases = {name: value - self._totals.get(name, 0) for name, value in new.items()}
        # A peer that was forgotten takes its count of repeats along.
        report.data["added"] = {name: increase for name, increase in increases.items() if increase > 0}
        old = self._gauges
        report.data["gauges"] = {name: value for name, value in gauges.items() if old.get(name) != value}
        self._totals, self._gauges = new, gauges
        return report


class RankStats:
    """Reports of one rank's runtime."""

    def __init__(self) -> None:
        self._changes = _Changes()
        self._peers: dict[str, Any] = {}
        self._next_at = 0.0
        self._num_ended = 0

    def take(self, runtime: Runtime) -> PDKVStats | None:
        """What changed since the last report; None when that is nothing, or the last was a moment ago.

        The end of the last transfer is reported at once: the engine may not take another step for long.
        """
        now, ledger = time.monotonic(), runtime.ledger
        settled = ledger.num_ended != self._num_ended and not ledger.num_open
        if now < self._next_at and not settled:
            return None
        self._next_at, self._num_ended = now + INTERVAL_S, ledger.num_ended
        stats, rank = runtime.stats(), str(runtime.rank)
        report = self._changes.take(totals(stats), {series("backlog_bytes", rank): stats.backlog_bytes})
        report.data["seconds"] = ledger.tally.take_observed()
        peers = {
            peer.name: {
                "codec": peer.codec, "cause": str(peer.cause), "reason": peer.reason,
                "goodput_bytes_per_s": peer.goodput_bytes_per_s,
            }
            for peer in stats.peers
        }  # fmt: skip
        if peers != self._peers:
            self._peers = report.data["peers"][rank] = peers
        return None if report.is_empty() else report


class SchedulerReport:
    """Reports of an engine's scheduler half: few, so each is due at once."""

    def __init__(self) -> None:
        self._changes = _Changes()
        self._last: tuple[int, Mapping[str, float]] | None = None

    def take(self, tally: Tally, gauges: Mapping[str, float]) -> PDKVStats | None:
        """What changed since the last report, if anything."""
        if self._last == (tally.num_counted, gauges):
            return None
        self._last = tally.num_counted, gauges
        return self._changes.take(tally.counts(), gauges)
