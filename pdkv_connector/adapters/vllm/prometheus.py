"""The connector's metrics in vLLM's Prometheus registry. Contract: vLLM 0.32, `KVConnectorPromMetrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, PromMetric, PromMetricT

from pdkv_connector import __version__
from pdkv_connector.telemetry.metrics import METRICS, SECONDS, Kind, Metric

_CLASSES: dict[Kind, type[PromMetric]] = {Kind.COUNTER: Counter, Kind.GAUGE: Gauge, Kind.HISTOGRAM: Histogram}
_SETTINGS: dict[Kind, dict[str, Any]] = {
    Kind.COUNTER: {}, Kind.GAUGE: {"multiprocess_mode": "mostrecent"}, Kind.HISTOGRAM: {"buckets": SECONDS},
}  # fmt: skip


class PDKVPromMetrics(KVConnectorPromMetrics):
    """All of `telemetry.metrics`, fed with the data of `PDKVStats`."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)

        def create(metric: Metric) -> Any:
            return metric_types[_CLASSES[metric.kind]](
                name=metric.full_name,
                documentation=metric.meaning,
                labelnames=[*labelnames, *metric.labels],
                **_SETTINGS[metric.kind],
            )

        self._metrics = {name: create(metric) for name, metric in METRICS.items()}
        self._shown: dict[tuple[int, str], dict[str, tuple[str, str]]] = {}
        transfer = vllm_config.kv_transfer_config
        for labels in per_engine_labelvalues.values():
            self._metrics["info"].labels(*labels, transfer.kv_role if transfer else "", __version__).set(1)
            for metric in METRICS.values():
                if not metric.labels:  # there from the start, at 0
                    self._metrics[metric.name].labels(*labels)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        data = transfer_stats_data
        for series, increase in data["added"].items():
            self._child(series, labels).inc(increase)
        for series, value in data["gauges"].items():
            self._child(series, labels).set(value)
        for metric, durations in data["seconds"].items():
            for seconds in durations:
                self._child(metric, labels).observe(seconds)
        self._show_ratio(labels, data["added"])
        for rank, peers in data["peers"].items():
            self._show_peers(engine_idx, labels, rank, peers)

    def _child(self, series: str, labels: list[object]) -> Any:
        name, *values = series.split(",")
        return self._metrics[name].labels(*labels, *values)

    def _show_ratio(self, labels: list[object], added: Mapping[str, float]) -> None:
        for direction in ("sent", "received"):
            if wire_bytes := added.get(f"{direction}_wire_bytes"):
                ratio = added[f"{direction}_kv_bytes"] / wire_bytes
                self._metrics["compression_ratio"].labels(*labels, direction).set(ratio)

    def _show_peers(self, engine_idx: int, labels: list[object], rank: str, peers: Mapping[str, Any]) -> None:
        """What was shown of a peer before goes to 0 where it no longer holds."""
        goodput, codec = self._metrics["goodput_bytes_per_second"], self._metrics["codec"]
        before = self._shown.get((engine_idx, rank), {})
        now = {name: (peer["codec"], peer["cause"]) for name, peer in peers.items()}
        for name, choice in before.items():
            if now.get(name) != choice:
                codec.labels(*labels, rank, name, *choice).set(0)
            if name not in now:
                goodput.labels(*labels, rank, name).set(0)
        for name, peer in peers.items():
            codec.labels(*labels, rank, name, *now[name]).set(1)
            goodput.labels(*labels, rank, name).set(peer["goodput_bytes_per_s"] or 0)
        self._shown[engine_idx, rank] = now
