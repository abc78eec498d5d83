"""The connector's statistics in vLLM's own hands: its log line, its Prometheus registry, fed by two real runtimes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging

from pdkv_connector.adapters.vllm import stats as stats_module
from pdkv_connector.adapters.vllm.connector import PDKVConnector
from pdkv_connector.adapters.vllm.stats import COUNTERS, PDKVPromMetrics, PDKVStats, StatsReport
from tests.unit.runtime.rank import Rank, toy_facts
from tests.unit.runtime.roles import Decode, Prefill
from tests.unit.runtime.test_codecs import ALL, SLOTS, SmoothPrompt

ENGINE = ["smollm2", "0"]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Prefill, Decode]]:
    """A producer of split and its consumer; reports may follow each other at once."""
    monkeypatch.setattr(stats_module, "INTERVAL_S", 0.0)
    settings: dict[str, Any] = {"facts": toy_facts(codecs=ALL), **SLOTS}
    ranks = [Rank("cpu_amx", 32, codec="split", **settings), Rank("nhd", 16, **settings)]
    yield Prefill(ranks[0]), Decode(ranks[1])
    for rank in ranks:
        rank.runtime.stop()


def transfer(pair: tuple[Prefill, Decode], num_tokens: int) -> None:
    prefill, decode = pair
    prompt = SmoothPrompt(num_tokens)
    decode.want(prompt, prefill)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    prefill.rank.wait_released(prompt)


def test_reports_add_up_to_the_totals(pair: tuple[Prefill, Decode]) -> None:
    sender, receiver = pair[0].rank.runtime, pair[1].rank.runtime
    reports, received = StatsReport(), StatsReport()
    assert reports.take(sender) is None, "nothing has moved"
    sums = PDKVStats()
    for num_tokens in (300, 700):
        transfer(pair, num_tokens)
        report = reports.take(sender)
        assert report is not None
        sums.aggregate(PDKVConnector.build_kv_connector_stats(report.to_dict()))
    assert sums.data["added"]["sent_kv_bytes"] == sender.stats().sent.raw_bytes
    assert sums.data["added"]["sent_wire_bytes"] == sender.stats().sent.encoded_bytes
    taken = received.take(receiver)
    assert taken is not None
    assert taken.data["added"]["received_kv_bytes"] == sums.data["added"]["sent_kv_bytes"]
    assert reports.take(sender) is None, "what was reported is not reported again"


def test_reports_are_an_interval_apart(pair: tuple[Prefill, Decode], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "INTERVAL_S", 3600.0)
    reports = StatsReport()
    reports.take(pair[0].rank.runtime)
    transfer(pair, 300)
    assert reports.take(pair[0].rank.runtime) is None


def test_vllm_logs_codec_and_reason(pair: tuple[Prefill, Decode]) -> None:
    transfer(pair, 700)
    report = StatsReport().take(pair[0].rank.runtime)
    assert report is not None
    log = KVConnectorLogging(None)
    log.connector_cls = PDKVConnector
    log.observe(report.to_dict())
    lines: list[str] = []
    log.log(lambda text, *values: lines.append(text % values))
    assert len(lines) == 1
    assert "codec for nhd rank 0=split (set by the configuration)" in lines[0]
    assert "sent ratio=1." in lines[0]


def metrics_in(registry: CollectorRegistry) -> PDKVPromMetrics:
    """The connector's metrics as vLLM builds them, in a registry of our own."""

    def inside(kind: Any) -> Any:
        return lambda **settings: kind(registry=registry, **settings)

    class NoConfig:
        kv_transfer_config = None

    kinds = {Gauge: inside(Gauge), Counter: inside(Counter), Histogram: inside(Histogram)}
    return PDKVConnector.build_prom_metrics(NoConfig(), kinds, ["model_name", "engine"], {0: list(ENGINE)})  # type: ignore[arg-type]


def test_prometheus_shows_bytes_goodput_and_cause(pair: tuple[Prefill, Decode]) -> None:
    registry = CollectorRegistry()
    metrics = metrics_in(registry)
    transfer(pair, 700)
    report = StatsReport().take(pair[0].rank.runtime)
    assert report is not None
    metrics.observe(report.to_dict())
    engine = dict(zip(("model_name", "engine"), ENGINE, strict=True))
    sent = pair[0].rank.runtime.stats().sent
    assert registry.get_sample_value("vllm:pdkv_sent_wire_bytes_total", engine) == sent.encoded_bytes
    assert sent.encoded_bytes > 0
    choice = {**engine, "peer": "nhd rank 0", "codec": "split", "cause": "configured"}
    assert registry.get_sample_value("vllm:pdkv_codec", choice) == 1


def test_only_the_present_choice_is_one() -> None:
    registry = CollectorRegistry()
    metrics = metrics_in(registry)
    for codec, cause in (("raw", "wire_unknown"), ("split", "carries_most")):
        peer = {"codec": codec, "cause": cause, "reason": "", "goodput_bytes_per_s": None}
        metrics.observe({"added": dict.fromkeys(COUNTERS, 1), "peers": {"D": peer}})
    engine = dict(zip(("model_name", "engine"), ENGINE, strict=True))
    shown = [
        registry.get_sample_value("vllm:pdkv_codec", {**engine, "peer": "D", "codec": codec, "cause": cause})
        for codec, cause in (("raw", "wire_unknown"), ("split", "carries_most"))
    ]
    assert shown == [0, 1]
