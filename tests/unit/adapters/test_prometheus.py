"""What Prometheus is shown: of a real transfer, of choices that change, of peers that go."""

from __future__ import annotations

from typing import Any

import pytest

from pdkv_connector.adapters.vllm.stats import PDKVStats
from pdkv_connector.adapters.vllm.stats_report import RankStats
from tests.unit.adapters.scrape import Scrape
from tests.unit.adapters.test_stats import RankPair, pair, transfer

__all__ = ["pair"]


def peer(codec: str, cause: str, goodput: float | None = None) -> dict[str, Any]:
    return {"codec": codec, "cause": cause, "reason": "", "goodput_bytes_per_s": goodput}


def report(rank: str, **peers: dict[str, Any]) -> dict[str, Any]:
    stats = PDKVStats()
    stats.data["peers"][rank] = peers
    return stats.data


def test_a_transfer_is_shown_on_both_sides(pair: RankPair) -> None:
    transfer(pair, 700)
    scrapes = []
    for role in pair:
        taken = RankStats().take(role.rank.runtime)
        assert taken is not None
        scrapes.append(Scrape())
        scrapes[-1].observe(taken.to_dict())
    sending, receiving = scrapes
    sent = pair[0].rank.runtime.stats().sent
    assert sending.value("sent_wire_bytes") == receiving.value("received_wire_bytes") == sent.encoded_bytes > 0
    assert sending.value("compression_ratio", direction="sent") == pytest.approx(sent.ratio)
    assert receiving.value("compression_ratio", direction="received") == pytest.approx(sent.ratio)
    assert sent.ratio > 1
    assert sending.value("codec", rank="0", peer="nhd rank 0", codec="split", cause="configured") == 1
    assert sending.value("transfers", side="producer", outcome="delivered") == 1
    assert receiving.value("transfers", side="consumer", outcome="delivered") == 1
    assert receiving.value("transfer_seconds", "_count") == sending.value("exposed_seconds", "_count") == 1


def test_only_the_present_choice_is_one_and_a_peer_that_is_gone_has_none() -> None:
    scrape = Scrape()
    choices = (("raw", "wire_unknown"), ("split", "carries_most"))
    shown = []
    for data in (
        report("0", D=peer(*choices[0])),
        report("0", D=peer(*choices[1], goodput=7.0)),
        report("1", E=peer(*choices[0])),
        report("0"),
    ):
        scrape.observe(data)
        codecs = [scrape.value("codec", rank="0", peer="D", codec=codec, cause=cause) for codec, cause in choices]
        shown.append((*codecs, scrape.value("goodput_bytes_per_second", rank="0", peer="D")))
    assert shown == [(1, None, 0), (0, 1, 7), (0, 1, 7), (0, 0, 0)]


def test_what_needs_no_label_is_there_from_the_start() -> None:
    scrape = Scrape("kv_consumer")
    assert scrape.value("sent_slabs") == scrape.value("leases") == scrape.value("transfer_seconds", "_count") == 0
    assert {name.split(",")[1] for name in scrape.series() if name.startswith("info,")} == {"kv_consumer"}
