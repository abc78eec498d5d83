"""The pure parts of the soak: what it asks is repeatable, and each kind of failure is seen."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.soak import journal, summary
from tests.soak.ledger import Ledger
from tests.soak.memory import Sample, growth, slope_mb_per_min
from tests.soak.metrics import Metrics
from tests.soak.oracle import CLEAR_MARGIN, Oracle
from tests.soak.settle import Left
from tests.soak.verdict import NOTICE_S, Outage, Result, judge
from tests.soak.workload import FAMILY_WINDOW, LONGEST_TOKENS, MAX_TOKENS, Prompt, Request, Workload, pool

REFERENCE = list(range(10, 10 + MAX_TOKENS))
PROMPT = Prompt("single-9", (1, 2, 3))
REQUEST = Request(5, PROMPT, "salt", 4, "concurrent", None)
COMPLETE = Result(REQUEST, "complete", REFERENCE[:4], 100.0, 103.0)
LOST = "prefill server http://127.0.0.1:9 hung up before its answer was complete: ClientOSError"


def ended(end: Any, num_tokens: int = 0, **changes: Any) -> Result:
    return dataclasses.replace(COMPLETE, end=end, token_ids=REFERENCE[:num_tokens], **changes)


class TestWorkload:
    def test_a_request_depends_on_seed_and_number_alone(self) -> None:
        one, same, other = (Workload(seed, pool(600), 0.2) for seed in (1, 1, 2))
        assert one.request(7) == same.request(7)
        assert [one.request(n) for n in range(9)] != [other.request(n) for n in range(9)]

    def test_lengths_run_from_one_token_to_the_longest(self) -> None:
        lengths = sorted(len(prompt.token_ids) for prompt in pool() if not prompt.family)
        assert (lengths[0], lengths[-1]) == (1, LONGEST_TOKENS)
        assert lengths[len(lengths) // 2] == pytest.approx(LONGEST_TOKENS**0.5, rel=0.1)

    def test_members_of_a_family_begin_alike_and_others_do_not(self) -> None:
        families = [prompt for prompt in pool() if prompt.family == "family-900"]
        assert len({prompt.token_ids[:900] for prompt in families}) == 1 < len(families)
        assert len({prompt.token_ids[:16] for prompt in pool() if not prompt.family}) == len(pool()) - 12

    def test_prefixes_are_shared_within_a_window_only(self) -> None:
        workload = Workload(0, pool(), 0.2)
        requests = [workload.request(number) for number in range(40 * FAMILY_WINDOW)]
        salts: dict[str, list[Request]] = {}
        for request in requests:
            salts.setdefault(request.cache_salt, []).append(request)
        shared = [group for group in salts.values() if len(group) > 1]
        assert len(shared) > 20
        for group in shared:
            assert len({request.prompt.family for request in group}) == 1
            assert group[-1].number - group[0].number < FAMILY_WINDOW

    @pytest.mark.parametrize("share", [0.0, 0.2])
    def test_the_share_that_is_given_up(self, share: float) -> None:
        workload = Workload(3, pool(600), share)
        requests = [workload.request(number) for number in range(1000)]
        assert sum(request.abort_after_s is not None for request in requests) / 1000 == pytest.approx(share, abs=0.05)


class TestVerdict:
    OUTAGE = Outage("prefill", 90.0, 95.0, 101.0)

    @pytest.mark.parametrize(
        ("result", "verdict"),
        [
            (COMPLETE, "right"),
            (ended("complete", 3), "wrong"),
            (dataclasses.replace(COMPLETE, token_ids=[10, 11, 12, 99]), "wrong"),
            (dataclasses.replace(COMPLETE, end="aborted", token_ids=[99]), "wrong"),
            (dataclasses.replace(COMPLETE, end="failed", token_ids=[10, 99], reason=LOST), "wrong"),
            (dataclasses.replace(COMPLETE, token_ids=REFERENCE[:5]), "wrong"),
            (ended("aborted", 2), "aborted"),
            (ended("hung"), "hung"),
            (ended("failed", 1, reason=LOST), "excused"),
            (ended("failed", 1, reason="Server disconnected"), "unclear"),
            (ended("failed", 1, reason=LOST, sent_at=101.0 + NOTICE_S), "excused"),
            (ended("failed", 1, reason=LOST, sent_at=102.0 + NOTICE_S, ended_at=120.0), "failed"),
        ],
    )
    def test_each_ending(self, result: Result, verdict: str) -> None:
        assert judge(result, REFERENCE, [self.OUTAGE]) == verdict

    def test_a_failure_without_an_outage_is_not_excused(self) -> None:
        failed = ended("failed", reason=LOST)
        assert judge(failed, REFERENCE, []) == "failed"
        assert judge(failed, REFERENCE, [Outage("decode", 200.0)]) == "failed"
        assert judge(failed, REFERENCE, [Outage("decode", 50.0)]) == "excused", "not back yet"

    def test_a_complaint_names_the_request_and_what_ran_beside_it(self) -> None:
        wrong = dataclasses.replace(COMPLETE, token_ids=[99], transfer_id="t1")
        beside = dataclasses.replace(COMPLETE, request=dataclasses.replace(REQUEST, number=4), sent_at=99.0)
        before = dataclasses.replace(
            COMPLETE, request=dataclasses.replace(REQUEST, number=3), sent_at=1.0, ended_at=2.0
        )
        ledger = Ledger(17, lambda _: REFERENCE, [before, beside, wrong])
        assert ledger.counts() | {"right": 2, "wrong": 1} == ledger.counts()
        (line,) = ledger.complaints()
        assert line.startswith("wrong: request 5 (single-9, 3 tokens, concurrent dispatch), transfer t1: tokens [99]")
        assert line.endswith("replay: --seed 17 --requests 4 5")


class TestMemory:
    def test_slope_of_a_line(self) -> None:
        line = [Sample(5.0 * i, 10**9 + 10**6 * i) for i in range(20)]
        assert slope_mb_per_min(line) == pytest.approx(12.0)
        assert slope_mb_per_min([dataclasses.replace(sample, rss_bytes=7) for sample in line]) == 0
        assert slope_mb_per_min(line[:2]) is None

    def test_warm_up_does_not_count(self) -> None:
        warming = [Sample(float(i), i * 10**8) for i in range(25)]
        steady = [Sample(float(i), 25 * 10**8) for i in range(25, 101)]
        found = growth("p", warming + steady)
        assert (found.first_mb, found.last_mb, found.slope_mb_per_min) == (2500, 2500, 0)
        cold = growth("p", [dataclasses.replace(sample, t=sample.t / 4) for sample in warming])
        assert cold.slope_mb_per_min, "a process that grows after its warm-up must show"


def test_metrics_are_summed_over_series() -> None:
    found = Metrics('# HELP x y\nx_total{a="1",source="s"} 2\nx_total{a="2",source="t"} 3.5e3\nx_total_more 9\nz 0.0\n')
    assert found.total("x_total") == 3502
    assert found.by("x_total", "source") == {"s": 2, "t": 3500}
    assert found.by("x_total", "other") == {}
    assert found.total("y") == 0
    assert found.has("z")
    assert not found.has("y")


def test_a_journal_tells_deliveries_failures_and_what_never_ended(tmp_path: Path) -> None:
    events = [
        {"event": "finished", "transfer_id": "a"}, {"event": "closed", "transfer_id": "a", "outcome": "delivered"},
        {"event": "finished", "transfer_id": "b"}, {"event": "closed", "transfer_id": "b", "outcome": "lease of 30 s"},
        {"event": "finished", "transfer_id": "c"}, {"event": "queued", "transfer_id": "d"},
        {"event": "registered", "transfer_id": "e"}, {"event": "failed", "transfer_id": "e", "reason": "peer 12ab34cd"},
        {"event": "registered", "transfer_id": "f"},
    ]  # fmt: skip
    path = tmp_path / "life.jsonl"
    assert list(journal.read(path)) == []
    path.write_text("".join(json.dumps({"t": float(i), **event}) + "\n" for i, event in enumerate(events)) + '{"t": 9')
    found = journal.transfers(journal.read(path))
    assert (found.delivered, found.open) == (1, ["c", "f"])
    assert found.failures == {"lease of N s": 1, "peer N": 1}
    assert journal.first_delivery(path) == 1.0


def test_prompts_whose_tokens_are_in_doubt_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "references.json"
    oracle = Oracle(path, "m")
    near, far = Prompt("near", (1,)), Prompt("far", (2,))
    rows = {near: CLEAR_MARGIN / 2, far: 2 * CLEAR_MARGIN}
    path.write_text(json.dumps({oracle._key(p): {"token_ids": [1], "margin": m} for p, m in rows.items()}))
    assert Oracle(path, "m").clear([near, far]) == [far]
    with pytest.raises(KeyError):
        Oracle(path, "another model").tokens(far)


GOOD: dict[str, Any] = {
    "requests": {"right": 3},
    "transfers": {"prefill": {"delivered": 2}, "decode": {"delivered": 2}},
    "outages": [{"side": "prefill", "down_s": 20.0, "recovery_s": 1.0}],
    "left": {"prefill": Left(0.0, 0, 0, (), 1.0).as_row(), "decode": Left(0.0, 0, 0, (), 1.0).as_row()},
}


def test_a_good_run_misses_no_goal() -> None:
    assert summary.missed(GOOD, []) == []
    assert Left(0.0, 0, 0, (), 1.0).clean


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ({"requests": {"right": 0}}, "no request was answered"),
        ({"transfers": {"decode": {"delivered": 0}}}, "decode delivered no transfer"),
        ({"outages": [{"side": "decode", "recovery_s": None}]}, "decode was killed"),
        ({"left": {"decode": Left(0.01, 0, 0, (), 90.0).as_row()}}, "1.00 % of its blocks"),
        ({"left": {"decode": Left(None, 0, 0, (), 90.0).as_row()}}, "does not answer"),
        ({"left": {"prefill": Left(0.0, 2, 0, (), 90.0).as_row()}}, "2 requests"),
        ({"left": {"prefill": Left(0.0, 0, 3, (), 90.0).as_row()}}, "3 leases"),
        ({"left": {"prefill": Left(0.0, 0, 0, ("t7",), 90.0).as_row()}}, "1 transfers: t7"),
    ],
)
def test_each_missed_goal_is_told(fault: dict[str, Any], line: str) -> None:
    (told,) = summary.missed({**GOOD, **fault}, [])
    assert line in told
    assert summary.missed(GOOD, ["wrong: x"]) == ["wrong: x"]
