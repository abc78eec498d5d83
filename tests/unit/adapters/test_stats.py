"""The connector's reports through vLLM's own statistics: what they add up to, when they are due, the log line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging

from pdkv_connector.adapters.vllm import stats_report
from pdkv_connector.adapters.vllm.connector import PDKVConnector
from pdkv_connector.adapters.vllm.stats import PDKVStats
from pdkv_connector.adapters.vllm.stats_report import RankStats, SchedulerReport
from pdkv_connector.telemetry.metrics import METRICS
from pdkv_connector.telemetry.tally import Tally
from pdkv_connector.types import Span
from tests.unit.adapters.scrape import Scrape
from tests.unit.runtime.rank import Rank, toy_facts, wait_until
from tests.unit.runtime.roles import Decode, Prefill
from tests.unit.runtime.test_codecs import ALL, SLOTS, SmoothPrompt

RankPair = tuple[Prefill, Decode]


@pytest.fixture
def pair() -> Iterator[RankPair]:
    """A producer of split and its consumer."""
    settings: dict[str, Any] = {"facts": toy_facts(codecs=ALL), **SLOTS}
    ranks = [Rank("cpu_amx", 32, codec="split", **settings), Rank("nhd", 16, **settings)]
    yield Prefill(ranks[0]), Decode(ranks[1])
    for rank in ranks:
        rank.runtime.stop()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports may follow each other at once."""
    monkeypatch.setattr(stats_report, "INTERVAL_S", 0.0)


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is due because time has passed."""
    monkeypatch.setattr(stats_report, "INTERVAL_S", 3600.0)


def transfer(pair: RankPair, num_tokens: int) -> None:
    prefill, decode = pair
    prompt = SmoothPrompt(num_tokens)
    decode.want(prompt, prefill)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    prefill.rank.wait_released(prompt)


@pytest.mark.usefixtures("at_once")
def test_reports_add_up_to_the_totals(pair: RankPair) -> None:
    sender, receiver = pair[0].rank.runtime, pair[1].rank.runtime
    reports, received = RankStats(), RankStats()
    first = reports.take(sender)
    assert first is not None
    assert first.data == {"added": {}, "gauges": {"backlog_bytes,0": 0}, "seconds": {}, "peers": {}}
    assert reports.take(sender) is None, "nothing has moved"
    sums = PDKVStats()
    for num_tokens in (300, 700):
        transfer(pair, num_tokens)
        report = reports.take(sender)
        assert report is not None
        sums.aggregate(PDKVConnector.build_kv_connector_stats(report.to_dict()))
    added = sums.data["added"]
    assert added["sent_kv_bytes"] == sender.stats().sent.raw_bytes
    assert added["sent_wire_bytes"] == sender.stats().sent.encoded_bytes
    assert added["transfers,producer,delivered"] == len(sums.data["seconds"]["exposed_seconds"]) == 2
    taken = received.take(receiver)
    assert taken is not None
    assert taken.data["added"]["received_kv_bytes"] == added["sent_kv_bytes"]
    assert taken.data["added"]["transfers,consumer,delivered"] == len(taken.data["seconds"]["transfer_seconds"]) == 2
    assert reports.take(sender) is None, "what was reported is not reported again"


@pytest.mark.usefixtures("seldom")
def test_the_end_of_the_last_transfer_is_due_at_once_and_no_other(pair: RankPair) -> None:
    prefill, decode = pair
    reports = RankStats()
    reports.take(prefill.rank.runtime)
    waiting, prompt = SmoothPrompt(40), SmoothPrompt(300)
    prefill.offer(waiting)
    decode.want(prompt, prefill)
    prefill.run(prompt)
    prefill.rank.wait_released(prompt)
    assert reports.take(prefill.rank.runtime) is None, "another one goes on, and with it the engine's steps"
    decode.want(waiting, prefill)
    prefill.run(waiting)
    prefill.rank.wait_released(waiting)
    report = reports.take(prefill.rank.runtime)
    assert report is not None
    assert report.data["added"]["transfers,producer,delivered"] == 2
    assert reports.take(prefill.rank.runtime) is None


@pytest.mark.usefixtures("at_once")
def test_the_backlog_rises_while_nothing_is_lent_and_ends_at_zero(pair: RankPair) -> None:
    prefill, decode = pair
    reports, scrape, prompt = RankStats(), Scrape(), SmoothPrompt(700)

    def backlog() -> float:
        report = reports.take(prefill.rank.runtime)
        scrape.observe(report and report.to_dict())
        return scrape.value("backlog_bytes", rank="0") or 0

    decode.want(prompt, prefill)
    prefill.offer(prompt)
    wait_until(lambda: bool(prefill.rank.runtime._loop._producer.book.turn), "registration")
    with decode.rank.runtime._loop.lock:  # the consumer stands still
        prefill.compute(prompt, Span(0, prompt.num_tokens))
        wait_until(lambda: backlog() > 0, "backlog")
    prefill.finish(prompt)
    prefill.rank.wait_released(prompt)
    assert backlog() == 0


@pytest.mark.usefixtures("at_once")
def test_vllm_logs_codec_reason_and_outcomes(pair: RankPair) -> None:
    transfer(pair, 700)
    report = RankStats().take(pair[0].rank.runtime)
    assert report is not None
    log = KVConnectorLogging(None)
    log.connector_cls = PDKVConnector
    log.observe(report.to_dict())
    lines: list[str] = []
    log.log(lambda text, *values: lines.append(text % values))
    assert len(lines) == 1
    for told in ("codec for nhd rank 0=split (set by the configuration)", "sent ratio=1.", "producer delivered=1"):
        assert told in lines[0]
    log.log(lambda text, *values: lines.append(text % values))
    assert len(lines) == 1, "an interval without news has no line"


def test_the_scheduler_reports_changes_only() -> None:
    tally, report = Tally(), SchedulerReport()
    told = []
    for leases, refused in ((0, False), (0, False), (2, True), (2, False), (0, False)):
        if refused:
            tally.count("recomputes,damaged")
        stats = report.take(tally, {"leases": leases})
        told.append(stats and (stats.data["added"], stats.data["gauges"]))
    assert told == [({}, {"leases": 0}), None, ({"recomputes,damaged": 1}, {"leases": 2}), None, ({}, {"leases": 0})]


@pytest.mark.usefixtures("at_once")
def test_ranks_add_up_and_their_gauges_stay_apart() -> None:
    """As vLLM sums the workers of an engine up, in whatever order they report."""
    scrape, sums = Scrape(), PDKVStats()
    peer = {"codec": "raw", "cause": "only", "reason": "", "goodput_bytes_per_s": 5.0}
    for rank, backlog in (("1", 30), ("0", 12), ("1", 0)):
        one = PDKVStats()
        one.data |= {"added": {"sent_slabs": 2}, "gauges": {f"backlog_bytes,{rank}": backlog}}
        one.data |= {"seconds": {"exposed_seconds": [0.2]}, "peers": {rank: {"D": peer}}}
        sums.aggregate(one)
    scrape.observe(sums.to_dict())
    assert scrape.value("sent_slabs") == 6
    assert [scrape.value("backlog_bytes", rank=rank) for rank in "01"] == [12, 0]
    assert [scrape.value("goodput_bytes_per_second", rank=rank, peer="D") for rank in "01"] == [5, 5]
    assert scrape.value("exposed_seconds", "_count") == 3
    assert scrape.value("exposed_seconds", "_sum") == pytest.approx(0.6)


def test_what_a_metric_is_called_is_unique() -> None:
    assert len({metric.sample_name for metric in METRICS.values()}) == len(METRICS)
