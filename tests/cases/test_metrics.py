"""What a scrape shows of two engines, through vLLM's scheduler and statistics: gauges fall back, nothing is lost."""

from __future__ import annotations

import pytest

from pdkv_connector.adapters.vllm import stats_report
from tests.cases.conftest import OpenPair
from tests.cases.pair import Pair, new_transfer_id
from tests.cases.test_pressure import SMALL, late_consumer
from tests.cases.text import Text


def left(pair: Pair) -> dict[str, float]:
    """Gauges that are not at 0."""
    found = pair.prefill.scrape.series() | pair.decode.scrape.series()
    gauges = ("leases", "reserved_tokens", "backlog_bytes")
    return {name: value for name, value in found.items() if name.split(",")[0] in gauges}


def test_leases_and_reserved_tokens_rise_and_fall_back_to_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """With reports an hour apart, only the last change of all can have brought the end of it."""
    monkeypatch.setattr(stats_report, "INTERVAL_S", 3600.0)
    text, transfer_id = Text(100), new_transfer_id()
    made = pair.ask_decode(text, transfer_id)
    pair.until(lambda: bool(pair.decode.scrape.value("reserved_tokens")), "reservation", pair.decode)
    assert left(pair) == {"reserved_tokens": 99}
    pair.ask_prefill(text, transfer_id)
    pair.until(lambda: bool(pair.prefill.scrape.value("leases")), "lease", pair.prefill)
    assert left(pair) == {"reserved_tokens": 99, "leases": 1}
    pair.until_answered(made)
    pair.until_released()
    assert left(pair) == {}
    sent, received = pair.prefill.scrape, pair.decode.scrape
    assert sent.value("transfers", side="producer", outcome="delivered") == 1
    assert received.value("transfers", side="consumer", outcome="delivered") == 1
    assert sent.value("sent_kv_bytes") == received.value("received_kv_bytes")
    assert received.value("transfer_seconds", "_count") == sent.value("exposed_seconds", "_count") == 1


def test_a_recompute_is_counted_with_its_cause(open_pair: OpenPair) -> None:
    pair = open_pair(None, {"producer_timeout_s": 0.5})
    made = pair.ask_decode(Text(100), "never offered")
    pair.until_answered(made)
    pair.until_released()
    assert pair.decode.num_computed[made] > 99
    counted = {name: value for name, value in pair.decode.scrape.series().items() if name.startswith("recomp")}
    assert counted == {"recomputes,no_prefill": 1}
    assert pair.decode.scrape.value("transfers", side="consumer", outcome="no_prefill") == 1
    assert left(pair) == {}


def test_params_that_are_broken_are_a_cause_too(pair: Pair) -> None:
    made = pair.decode.add(Text(50), {"do_remote_prefill": True, "pdkv": {"transfer_id": 7}}, max_tokens=3)
    pair.until_answered(made)
    assert pair.decode.scrape.value("recomputes", cause="bad_params") == 1


def test_a_client_that_leaves_is_no_recompute(pair: Pair) -> None:
    made = pair.ask_decode(Text(100), "never offered")
    pair.until(lambda: pair.decode.scrape.value("reserved_tokens") == 99, "reservation", pair.decode)
    pair.decode.abort(made)
    pair.until_released()
    series = pair.decode.scrape.series()
    assert not [name for name in series if name.startswith(("recomputes", "failed_requests"))]
    assert series["transfers,consumer,cancelled"] == 1
    assert left(pair) == {}


def test_a_reclaimed_lease_is_an_outcome_and_a_cause(open_pair: OpenPair) -> None:
    pair = open_pair(SMALL)
    late_consumer(pair)
    assert pair.prefill.scrape.value("transfers", side="producer", outcome="reclaimed") == 1
    assert pair.decode.scrape.value("recomputes", cause="reclaimed") == 1
    assert left(pair) == {}
