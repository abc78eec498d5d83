"""The advisor over modelled links: split where the wire is slow, raw where coding gains nothing, never much slower."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path

import pytest

from pdkv_connector.policy.codec_record import CodecRecord
from pdkv_connector.runtime.advisor import Advisor
from pdkv_connector.session.actions import LegKey, SlabKey, Write
from pdkv_connector.session.codec_advisor import Load
from pdkv_connector.session.messages import Slab
from pdkv_connector.telemetry.stats import Traffic
from pdkv_connector.telemetry.timeline_writer import TimelineWriter
from pdkv_connector.types import Credit, Span
from tests.unit.runtime.modelled_link import CODERS, RING, SLOT_BYTES, ModelledLink, new_advisor

MB = 1_000_000
SHAPED = {"rate": 12.5e6, "burst_bytes": 1 << 20, "opening_s": 0.01}


def changes(codecs: list[str]) -> int:
    return sum(one != other for one, other in itertools.pairwise(codecs))


@pytest.mark.parametrize("produced_per_s", [32e6, 0.0], ids=["while-prefilling", "all-at-once"])
def test_a_slow_link_gets_split_within_a_few_slabs_and_later_at_once(produced_per_s: float) -> None:
    link = ModelledLink(new_advisor(), **SHAPED)
    first_s = link.transfer(24 * MB, produced_per_s)
    raw_slabs = [number for number, codec in enumerate(link.codecs) if codec == "raw"]
    assert raw_slabs == list(range(len(raw_slabs))), "and never goes back"
    assert len(raw_slabs) <= 8
    link.rest(10.0)
    link.codecs.clear()
    second_s = link.transfer(24 * MB, produced_per_s)
    assert set(link.codecs) == {"split"}
    assert second_s < first_s
    assert second_s < 1.05 * 24e6 / 12.5e6 / CODERS["split"].ratio


@pytest.mark.parametrize(("was_full", "most_raw"), [(True, 3), (False, 8)])
def test_slabs_that_passed_in_bursts_do_not_hide_a_slow_wire(was_full: bool, most_raw: int) -> None:
    """A long prefill makes KV as fast as the wire takes it: the shaper's bucket lets single slabs pass at once."""
    link = ModelledLink(new_advisor(), **SHAPED)
    for num_bytes, produced_per_s in [(24 * MB, 32e6)] * was_full + [(180 * MB, 11.8e6)] * 3:
        link.transfer(num_bytes, produced_per_s)
        link.rest(5.0)
    link.codecs.clear()
    link.transfer(24 * MB, produced_per_s=32e6)
    assert link.codecs.count("raw") <= most_raw
    assert set(link.codecs) <= {"raw", "split"}


@pytest.mark.parametrize("produced_per_s", [32e6, 0.0])
def test_little_is_lost_before_a_slow_link_is_known(produced_per_s: float) -> None:
    always, chosen = ModelledLink(new_advisor("split"), **SHAPED), ModelledLink(new_advisor(), **SHAPED)
    assert chosen.transfer(24 * MB, produced_per_s) < always.transfer(24 * MB, produced_per_s) + 0.16


@pytest.mark.parametrize("copied_per_s", [1e9, 2e9, 3e9])
@pytest.mark.parametrize("num_mb", [8, 94, 400])
def test_loopback_is_never_much_slower_than_raw(copied_per_s: float, num_mb: int) -> None:
    loopback = {"rate": 1e12, "copy_s": 1 / copied_per_s}
    link, raw = ModelledLink(new_advisor(), **loopback), ModelledLink(new_advisor("raw"), **loopback)
    seconds, raw_s = [], []
    for _ in range(40):
        seconds.append(link.transfer(num_mb * MB))
        raw_s.append(raw.transfer(num_mb * MB))
        link.rest(0.5)
        raw.rest(0.5)
    if copied_per_s > 1e9:  # at 1 GB/s pack4 and raw come out even
        assert link.codecs[-1] == "raw"
    assert sum(seconds[10:]) <= 1.03 * sum(raw_s[10:])
    assert changes(link.codecs) <= 4


def test_a_fast_wire_that_is_full_gets_a_codec() -> None:
    link, raw = ModelledLink(new_advisor(), rate=1e9), ModelledLink(new_advisor("raw"), rate=1e9)
    for _ in range(3):
        link.transfer(800 * MB)
        raw.transfer(800 * MB)
    assert link.codecs[-1] != "raw"
    assert link.transfer(800 * MB) < raw.transfer(800 * MB) / 1.2


def test_a_link_that_prefill_does_not_fill_stays_raw() -> None:
    link = ModelledLink(new_advisor(), rate=125e6)
    for _ in range(5):
        link.transfer(200 * MB, produced_per_s=12e6)
        link.rest(3.0)
    assert set(link.codecs) == {"raw"}


def test_a_link_that_slows_down_is_coded_and_one_that_recovers_is_not() -> None:
    link = ModelledLink(new_advisor(), rate=125e6)
    link.transfer(100 * MB, produced_per_s=12e6)
    link.rate = 10e6
    link.transfer(100 * MB, produced_per_s=12e6)
    assert link.codecs[-1] == "split"
    link.rate = 125e6
    link.transfer(200 * MB, produced_per_s=12e6)
    assert link.codecs[-1] == "raw"
    assert changes(link.codecs) == 2


# -- what is told -------------------------------------------------------------------------------------------------


def advise(advisor: Advisor, codecs: tuple[str, ...], peer: str = "peer") -> str:
    advice = advisor.advise(LegKey("t", peer, 1), dict.fromkeys(codecs, 0), Load(SLOT_BYTES, SLOT_BYTES, 0), 1.0)
    assert advice is not None
    assert 0 < advice.raw_bytes <= 2 * SLOT_BYTES
    return advice.codec


def test_a_change_is_logged_once_with_its_reason_and_noted(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO)
    advisor = new_advisor()
    advisor._timeline = TimelineWriter(str(tmp_path / "timeline"))
    ModelledLink(advisor, **SHAPED).transfer(24 * MB)
    (line,) = caplog.messages
    assert line.startswith("codec for D rank 0: raw -> split: the wire is the slowest stage at ")
    (event,) = [json.loads(line) for line in (tmp_path / "timeline").read_text().splitlines()]
    assert (event["event"], event["codec"], event["transfer_id"]) == ("codec", "split", "t")
    assert event["reason"] in line


def test_a_configured_codec_that_a_peer_lacks_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    advisor = new_advisor("split")
    assert [advise(advisor, ("raw", "pack4")) for _ in range(3)] == ["raw"] * 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the configuration says split, which this peer does not have" in record.message
    advisor.met("other", "E rank 0")
    assert advise(advisor, ("raw", "split"), "other") == "split"
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_a_coded_slab_holds_more_than_a_slot_and_less_after_it_did_not_fit() -> None:
    advisor = Advisor("split", {"split": CodecRecord(1e9, 1e9, 1.5)}, TimelineWriter(""))
    advisor.met("peer", "D")
    for number in range(3):
        send(advisor, number, 1 << 20, attempt=1, seconds=1.0)
    load = Load(SLOT_BYTES, 1 << 30, 0)
    before = advisor.advise(LegKey("t", "peer", 1), {"split": 0}, load, 1.0)
    advisor.overflowed("split")
    after = advisor.advise(LegKey("t", "peer", 1), {"split": 0}, load, 1.0)
    assert before is not None
    assert after is not None
    assert 1.5 * SLOT_BYTES > before.raw_bytes > after.raw_bytes >= SLOT_BYTES


def send(advisor: Advisor, number: int, num_bytes: int, attempt: int, seconds: float, codec: str = "split") -> None:
    key = SlabKey(LegKey("t", "peer", 1), number)
    header = Slab("t", 1, number, 0, Span(0, 1), Span(0, 1), Credit(0, 0), codec, num_bytes, 0)
    advisor.started(Write(key, 0, RING, header, 3 * num_bytes // 2, attempt), 10.0 + number)
    advisor.ended(key, True, 10.0 + number + seconds)


def test_stats_count_slabs_repeats_and_seconds() -> None:
    advisor = new_advisor("split")
    advise(advisor, ("raw", "split"))
    for number in range(4):
        send(advisor, number, 1000, attempt=1, seconds=0.5)
    send(advisor, 9, 1000, attempt=2, seconds=0.5)
    advisor.encoded("split", 1500, 1000, 0.25)
    advisor.decoded("pack4", 1330, 1000, 0.5)
    stats = advisor.stats()
    (peer,) = stats.peers
    assert (peer.name, peer.codec, peer.reason) == ("D rank 0", "split", "set by the configuration")
    assert (peer.sent, peer.resends) == (Traffic(4, 6000, 4000), 1)
    assert peer.sent.ratio == 1.5
    assert peer.goodput_bytes_per_s == pytest.approx(2000)
    assert (stats.sent, stats.received) == (Traffic(4, 6000, 4000), Traffic(1, 1330, 1000))
    by_codec = {codec.codec: codec for codec in stats.codecs}
    assert (by_codec["split"].encode_bytes, by_codec["split"].encode_s) == (1500, 0.25)
    assert (by_codec["pack4"].decode_bytes, by_codec["pack4"].decode_s) == (1330, 0.5)
    advisor.forget("peer")
    assert advisor.stats().peers == ()
    assert advisor.stats().sent == stats.sent
