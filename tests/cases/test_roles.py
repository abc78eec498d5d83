"""C30: set-ups in which no KV can move are told and counted, not served in silence."""

from __future__ import annotations

import pytest

from pdkv_connector.adapters.vllm.scheduler_half import SchedulerHalf
from tests.cases.pair import Pair
from tests.cases.planted import caught, nothing, plant
from tests.cases.text import Text
from tests.unit.adapters import test_scheduler_half as halves


def test_case_c30_a_scrape_shows_requests_that_came_without_a_transfer(pair: Pair) -> None:
    """The router sends the decode engine plain requests: it prefills them itself, and its metrics say so."""
    for number in range(2):
        made = pair.decode.add(Text(40 + number), max_tokens=3)
        pair.until_answered(made)
    pair.transfer(Text(50))
    pair.until_released()
    assert pair.decode.scrape.value("requests_without_transfer", cause="no_params") == 2
    assert pair.prefill.scrape.value("requests_without_transfer", cause="no_params") is None
    assert pair.decode.scrape.value("transfers", side="consumer", outcome="delivered") == 1


def test_case_c30_control_a_counter_that_stands_still(pair: Pair) -> None:
    with caught("None == 2", plant(SchedulerHalf, "_count_idle", nothing)):
        test_case_c30_a_scrape_shows_requests_that_came_without_a_transfer(pair)


def test_case_c30_control_a_wrong_role_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    with caught("no KV moves", plant(SchedulerHalf, "_warn_role", nothing)):
        halves.test_case_c30_a_request_for_the_other_role_is_told("kv_consumer", halves.PRODUCE, caplog)


def test_case_c30_control_decoding_alone_in_silence(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caught("stats is not None|0 == 12", plant(SchedulerHalf, "_warn_decode_only", nothing)):
        halves.test_case_c30_decoding_without_any_transfer_is_counted_and_told_now_and_then(
            "kv_consumer", 12, caplog, monkeypatch
        )
