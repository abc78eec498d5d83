"""The connector's metrics in a registry of their own, as vLLM builds and feeds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pdkv_connector.adapters.vllm.connector import PDKVConnector
from pdkv_connector.telemetry.metrics import METRICS, Kind, series

ENGINE = {"model_name": "smollm2", "engine": "0"}


class Scrape:
    """What a scrape of the engine's `/metrics` would find."""

    def __init__(self, role: str = "kv_both") -> None:
        self.registry = CollectorRegistry()

        def inside(kind: Any) -> Any:
            return lambda **settings: kind(registry=self.registry, **settings)

        config: Any = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_role=role))
        kinds = {kind: inside(kind) for kind in (Gauge, Counter, Histogram)}
        self._metrics = PDKVConnector.build_prom_metrics(config, kinds, [*ENGINE], {0: [*ENGINE.values()]})

    def observe(self, data: dict[str, Any] | None) -> None:
        """Take one report as it comes out of the engine's process."""
        if data is not None:
            self._metrics.observe(msgspec.msgpack.decode(msgspec.msgpack.encode(data)))

    def value(self, name: str, suffix: str = "", **labels: str) -> float | None:
        """One sample; None where there is none."""
        metric = METRICS[name]
        suffix = suffix or ("_total" if metric.kind is Kind.COUNTER else "")
        return self.registry.get_sample_value(metric.full_name + suffix, {**ENGINE, **labels})

    def series(self) -> dict[str, float]:
        """Every sample of a counter or gauge that is not 0, by series name."""
        found = {}
        for metric in METRICS.values():
            for family in self.registry.collect():
                for sample in family.samples:
                    if metric.kind is not Kind.HISTOGRAM and sample.name == metric.sample_name and sample.value:
                        found[series(metric.name, *(sample.labels[label] for label in metric.labels))] = sample.value
        return found
