"""The arithmetic and the guards of the TTFT benchmark; its engines are exercised by running it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import bench_ttft, contenders, guards, netns, report
from benchmarks.bench_ttft import RESULTS
from benchmarks.contenders import Sample, make_prompt
from pdkv_connector.config import Config

BASE = Sample("nixl", "400mbit", 1024, 0, 1.0, 1.1, 1.75, 24_000_000, 1, 0.5)


def repetitions(*first_token_s: float) -> list[Sample]:
    return [dataclasses.replace(BASE, repeat=i, first_token_s=s) for i, s in enumerate(first_token_s)]


def test_added_is_measured_over_the_prefill_without_transfer() -> None:
    assert BASE.added_s == pytest.approx(0.75)
    slower_under_transfer = dataclasses.replace(BASE, prefill_s=1.7)
    assert slower_under_transfer.added_s == BASE.added_s, "a prefill slowed by the connector must not be forgiven"


def test_table_shows_median_and_range() -> None:
    row = report.markdown_table(repetitions(1.5, 9.0, 2.0)).splitlines()[-1]
    assert row == "| 400mbit | 1024 | nixl | 1.00 | 2.00 | 1.00 | 0.50 to 8.00 | 0.90 | 24.0 |  |"


def test_every_codec_is_an_entrant_of_its_own() -> None:
    found = contenders.entrants(["colocated", "nixl", "pdkv"], ["raw", "auto"])
    assert [entrant.name for entrant in found] == ["colocated", "nixl", "pdkv (raw)", "pdkv (auto)"]
    assert [entrant.label for entrant in found] == ["colocated", "nixl", "pdkv-raw", "pdkv-auto"]
    assert [entrant.settings for entrant in found] == [{}, {}, {"codec": "raw"}, {"codec": "auto"}]


def test_guards_are_measured_on_and_off() -> None:
    on, off = bench_ttft.chosen(bench_ttft.parse(["--guards"]))
    assert (on.name, off.label) == ("pdkv (auto, guarded)", "pdkv-auto-unguarded")
    as_it_is, without = (Config.from_sources(entrant.settings, {}) for entrant in (on, off))
    assert as_it_is == Config()
    assert as_it_is.integrity > without.integrity
    assert as_it_is.lease_s < without.lease_s
    assert "pdkv (auto)" in [entrant.name for entrant in bench_ttft.chosen(bench_ttft.parse([]))]


def test_guards_table_compares_medians_and_pairs() -> None:
    on, off = (
        [dataclasses.replace(sample, connector=f"pdkv (raw, {word})") for sample in repetitions(*first_token_s)]
        for word, first_token_s in ((contenders.GUARDED, (2.2, 9.0, 2.0)), (contenders.UNGUARDED, (2.0, 3.0, 1.0)))
    )
    row = guards.markdown_table([*off, *on]).splitlines()[2:]
    assert row == ["| 400mbit | 1024 | pdkv (raw) | 2.200 | 2.000 | 1.100 | 1.100 to 3.000 | 1.200 | 1.000 |"]
    assert guards.markdown_table(on).splitlines()[2:] == []


def test_slabs_are_counted_by_codec_from_where_the_request_began(tmp_path: Path) -> None:
    timeline = tmp_path / "producer.jsonl"
    assert contenders.slabs_by_codec(timeline, 0) == {}
    lines = [{"event": "posted", "codec": codec} for codec in ("raw", "split", "split")]
    text = [json.dumps(line) + "\n" for line in [*lines, {"event": "written"}]]
    timeline.write_text("".join(text))
    assert contenders.slabs_by_codec(timeline, 0) == {"raw": 1, "split": 2}
    assert contenders.slabs_by_codec(timeline, len(text[0])) == {"split": 2}


def test_table_says_which_codec_was_used() -> None:
    samples = [dataclasses.replace(BASE, slabs=slabs) for slabs in ({"split": 1}, {"split": 2, "raw": 1})]
    assert report.markdown_table(samples[:1]).endswith("| split |")
    assert report.markdown_table(samples).endswith("| raw 25 %, split 75 % |")


def test_runs_are_read_as_written(tmp_path: Path) -> None:
    samples = [dataclasses.replace(BASE, slabs={"split": 3}), BASE]
    report.append_run(tmp_path / "ttft.jsonl", {}, {}, samples)
    assert report.read_runs(tmp_path / "ttft.jsonl") == [samples]


def test_runs_from_before_there_were_codecs_are_still_read() -> None:
    runs = report.read_runs(RESULTS / "ttft.jsonl")
    assert all(runs)
    assert {sample.connector for sample in runs[0]} == {"colocated", "nixl", "pdkv"}
    assert "| pdkv |" in report.markdown_table(runs[0])


def test_run_keeps_every_repetition(tmp_path: Path) -> None:
    path = tmp_path / "results" / "ttft.jsonl"
    for _ in range(2):
        report.append_run(path, {"cpu": "x"}, {"repeats": 3}, repetitions(1.5, 9.0, 2.0))
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    assert [[sample["added_s"] for sample in run["samples"]] for run in runs] == [[0.5, 8.0, 1.0]] * 2


def test_prompts_of_two_measurements_share_no_prefix() -> None:
    assert make_prompt(16, "a") == make_prompt(16, "a")
    assert make_prompt(16, "a")[0] != make_prompt(16, "b")[0]


def test_refusal_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(netns.CannotShape, match="apt-get install iproute2"):
        netns.require_tools()
    monkeypatch.setattr(shutil, "which", lambda tool: tool)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(netns.CannotShape, match="need root"):
        netns.require_tools()


def namespaces() -> set[str]:
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines()}


def fail_on_a_link() -> None:
    with netns.ShapedLink() as link:
        assert set(link.namespaces) <= namespaces()
        link.set_rate("400mbit")
        link.set_rate(netns.UNSHAPED)
        raise RuntimeError(" ".join(link.namespaces))


def test_link_is_removed_when_the_run_fails() -> None:
    try:
        netns.require_tools()
    except netns.CannotShape as error:
        pytest.skip(str(error))
    with pytest.raises(RuntimeError) as failure:
        fail_on_a_link()
    made = set(str(failure.value).split())
    assert len(made) == 2
    assert not made & namespaces()
