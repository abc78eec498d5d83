"""What the connector has moved, in vLLM's own statistics: a log line an interval, Prometheus metrics `vllm:pdkv_*`.

Contract: vLLM 0.32, `KVConnectorStats` and `KVConnectorPromMetrics`. A worker reports what was added since last time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
    PromMetric,
    PromMetricT,
)

from pdkv_connector.runtime.runtime import Runtime
from pdkv_connector.telemetry.stats import Stats

INTERVAL_S = 1.0
"""Reports of one worker are at least this far apart: most steps pay for a clock reading only."""
MB = 1e6
COUNTERS = {
    "sent_slabs": "Slabs sent, repeats not counted.",
    "sent_kv_bytes": "Bytes of KV sent, before encoding.",
    "sent_wire_bytes": "Bytes of KV sent, as encoded.",
    "resent_slabs": "Slabs written again because the consumer missed them.",
    "received_slabs": "Slabs received whole.",
    "received_kv_bytes": "Bytes of KV received, after decoding.",
    "received_wire_bytes": "Bytes of KV received, as encoded.",
    "encode_seconds": "Time spent gathering and encoding.",
    "decode_seconds": "Time spent decoding and scattering.",
}
"""What is counted, as named in reports and, behind `vllm:pdkv_`, in metrics."""


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
    }


@dataclass
class PDKVStats(KVConnectorStats):
    """`data`: `added`, counter -> increase; `peers`, name -> how KV goes there now. Plain, to cross processes."""

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data: dict[str, Any] = {"added": dict.fromkeys(COUNTERS, 0), "peers": {}}

    def is_empty(self) -> bool:
        return not any(self.data["added"].values())

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        added = self.data["added"]
        for name, increase in other.data["added"].items():
            added[name] += increase
        self.data["peers"].update(other.data["peers"])
        return self

    def reduce(self) -> dict[str, Any]:
        """The interval in one line; times and rates are left to the metrics."""
        added = self.data["added"]
        line: dict[str, Any] = {}
        for way in ("sent", "received"):
            if added[f"{way}_slabs"]:
                wire_bytes = added[f"{way}_wire_bytes"]
                line[f"KV {way} MB"] = round(added[f"{way}_kv_bytes"] / MB, 1)
                line[f"{way} ratio"] = round(added[f"{way}_kv_bytes"] / wire_bytes, 3) if wire_bytes else 1.0
        if added["resent_slabs"]:
            line["slabs sent again"] = added["resent_slabs"]
        for name, peer in self.data["peers"].items():
            line[f"codec for {name}"] = f"{peer['codec']} ({peer['reason']})"
        return line


class StatsReport:
    """Turns a runtime's totals into reports of what was added."""

    def __init__(self) -> None:
        self._reported = dict.fromkeys(COUNTERS, 0.0)
        self._next_at = 0.0

    def take(self, runtime: Runtime) -> PDKVStats | None:
        """What was added since the last report; None when that is nothing, or the last was a moment ago."""
        now = time.monotonic()
        if now < self._next_at:
            return None
        self._next_at = now + INTERVAL_S
        stats = runtime.stats()
        new = totals(stats)
        # A peer that was forgotten takes its count of repeats along.
        added = {name: max(0, new[name] - self._reported[name]) for name in COUNTERS}
        self._reported = new
        peers = {
            peer.name: {
                "codec": peer.codec, "cause": str(peer.cause), "reason": peer.reason,
                "goodput_bytes_per_s": peer.goodput_bytes_per_s,
            }
            for peer in stats.peers
        }  # fmt: skip
        report = PDKVStats({"added": added, "peers": peers})
        return None if report.is_empty() else report


class PDKVPromMetrics(KVConnectorPromMetrics):
    """`vllm:pdkv_*`: a counter for each of `COUNTERS`; by peer the goodput, and which codec for what cause."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._counter_cls(name=f"vllm:pdkv_{name}", documentation=text, labelnames=labelnames)
            for name, text in COUNTERS.items()
        }
        self._goodput = self._gauge_cls(
            name="vllm:pdkv_goodput_bytes_per_second",
            documentation="Encoded bytes per second towards a peer while writes are in flight.",
            labelnames=[*labelnames, "peer"],
        )
        self._codec = self._gauge_cls(
            name="vllm:pdkv_codec",
            documentation="1 for the codec that KV towards a peer takes now, and why; 0 for those it took before.",
            labelnames=[*labelnames, "peer", "codec", "cause"],
        )
        self._shown: dict[tuple[int, str], tuple[str, str]] = {}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, increase in transfer_stats_data["added"].items():
            self._counters[name].labels(*labels).inc(increase)
        for name, peer in transfer_stats_data["peers"].items():
            if peer["goodput_bytes_per_s"] is not None:
                self._goodput.labels(*labels, name).set(peer["goodput_bytes_per_s"])
            self._show_codec(engine_idx, labels, name, (peer["codec"], peer["cause"]))

    def _show_codec(self, engine_idx: int, labels: list[object], peer: str, choice: tuple[str, str]) -> None:
        before = self._shown.get((engine_idx, peer), choice)
        if before != choice:
            self._codec.labels(*labels, peer, *before).set(0)
        self._codec.labels(*labels, peer, *choice).set(1)
        self._shown[engine_idx, peer] = choice
