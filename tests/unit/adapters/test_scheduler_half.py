"""What the scheduler half makes of whole requests: roles, probes, warnings, and when workers must be woken."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.outputs import KVConnectorOutput

from pdkv_connector import rare_log
from pdkv_connector.adapters.vllm.scheduler_half import SchedulerHalf
from pdkv_connector.adapters.vllm.step_plan import RankEndpoint
from pdkv_connector.errors import ConfigError
from tests.unit.adapters.engine_objects import blocks, ended, first_step, idle_step, kv_config, request, vllm_config

PRODUCE = {"do_remote_decode": True, "pdkv": {"transfer_id": "t"}}
CONSUME = {"do_remote_prefill": True, "pdkv": {"transfer_id": "t", "endpoints": ["h:1"]}}
BLOCKS = ([1, 2, 3], [4, 5, 6])


def half(role: str, tp_size: int = 1) -> SchedulerHalf:
    made = SchedulerHalf(vllm_config(role, tp_size), kv_config())
    made.meet_workers({(0, rank): RankEndpoint(f"h:{8000 + rank}") for rank in reversed(range(tp_size))})
    return made


def test_an_unknown_setting_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="did you mean 'lease_s'"):
        SchedulerHalf(vllm_config("kv_both", leases=3), kv_config())


def test_a_prefill_request_from_arrival_to_release() -> None:
    producer, made = half("kv_producer", tp_size=2), request("r", 40, PRODUCE)
    producer.on_new_request(made)
    assert producer.num_new_matched_tokens(made, 0) == (0, False)
    assert [offer.transfer_id for offer in producer.build_plan(first_step(made, 0, 40, *BLOCKS)).offers] == ["t"]
    held, params = producer.request_finished(ended(made, "FINISHED_STOPPED", 40), BLOCKS)
    assert held
    assert params is not None
    assert params["pdkv"]["endpoints"] == ["h:8000", "h:8001"]
    assert params["remote_block_ids"] == [[1, 2, 3], [4, 5, 6]]
    assert producer.build_plan(idle_step()).finished == ["t"]
    producer.update(KVConnectorOutput(finished_sending={"r"}))
    producer.on_new_request(request("again", 40, PRODUCE))
    assert len(producer.build_plan(idle_step()).offers) == 1


def test_a_decode_request_from_arrival_to_arrival_of_its_kv() -> None:
    consumer, made = half("kv_consumer"), request("r", 40, CONSUME)
    consumer.on_new_request(made)
    assert consumer.num_new_matched_tokens(made, 16) == (23, True)
    consumer.allocated(made, blocks(*BLOCKS), 23)
    assert [receive.transfer_id for receive in consumer.build_plan(idle_step()).receives] == ["t"]
    sibling = request("s", 40, CONSUME)
    consumer.on_new_request(sibling)
    assert consumer.num_new_matched_tokens(sibling, 0) == (None, False)
    consumer.update(KVConnectorOutput(finished_recving={"r"}))
    assert consumer.num_new_matched_tokens(sibling, 32) == (0, False)
    assert consumer.request_finished(ended(made, "FINISHED_STOPPED", 60), BLOCKS) == (False, None)


def test_workers_are_woken_for_news_only() -> None:
    engine, made = half("kv_both"), request("r", 40, CONSUME)
    engine.on_new_request(made)
    woken = [engine.has_news]
    engine.allocated(made, blocks(*BLOCKS), 39)
    woken.append(engine.has_news)
    engine.build_plan(idle_step())
    woken.append(engine.has_news)
    engine.request_finished(ended(made, "FINISHED_ABORTED", 0), BLOCKS)
    woken.append(engine.has_news)
    assert woken == [False, True, False, True]


def test_a_probe_learns_where_the_engine_is_and_holds_nothing() -> None:
    producer, made = half("kv_producer"), request("r", 3, {"pdkv": {"probe": True}})
    producer.on_new_request(made)
    assert not producer.has_news
    held, params = producer.request_finished(ended(made, "FINISHED_STOPPED", 3), BLOCKS)
    assert not held
    assert params is not None
    assert params["pdkv"] == {"engine_id": "engine-1", "endpoints": ["h:8000"], "tp_size": 1, "pp_size": 1}


@pytest.mark.parametrize(("role", "params"), [("kv_consumer", PRODUCE), ("kv_producer", CONSUME)])
def test_case_c30_a_request_for_the_other_role_is_told(
    role: str, params: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine, made = half(role), request("r", 40, params)
    engine.on_new_request(made)
    assert "no KV moves. Set kv_role to" in caplog.text
    stats = engine.take_stats()
    assert stats is not None
    assert stats.data["added"] == {"requests_without_transfer,wrong_role": 1}
    assert engine.num_new_matched_tokens(made, 0) == (0, False)
    assert engine.request_finished(ended(made, "FINISHED_STOPPED", 40), BLOCKS) == (False, None)
    assert not engine.has_news


@pytest.mark.parametrize(("role", "num_counted"), [("kv_consumer", 12), ("kv_both", 0), ("kv_producer", 0)])
def test_case_c30_decoding_without_any_transfer_is_counted_and_told_now_and_then(
    role: str, num_counted: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = half(role)
    for number in range(11):
        engine.on_new_request(request(f"r{number}"))
    monkeypatch.setattr(rare_log, "INTERVAL_S", 0.0)
    engine.on_new_request(request("r11"))
    stats = engine.take_stats()
    assert stats is not None
    assert stats.data["added"].get("requests_without_transfer,no_params", 0) == num_counted
    assert caplog.text.count("Is the router set up for P/D?") == (2 if num_counted else 0)
    assert ("(and 10 more like it since the last line)" in caplog.text) == bool(num_counted)


@pytest.mark.parametrize(
    "params", ["nonsense", ["x"], {"do_remote_prefill": True, "tp_size": {}, "pdkv": {"transfer_id": "t"}}]
)
def test_nonsense_from_a_client_fails_its_request_not_the_engine(params: Any) -> None:
    engine, made = half("kv_both"), request("r", 40, params)
    engine.on_new_request(made)
    assert engine.num_new_matched_tokens(made, 0) == (39, True)
    engine.allocated(made, blocks(*BLOCKS), 39)
    (receive,) = engine.build_plan(idle_step()).receives
    assert "invalid" in receive.reason
    assert engine.request_finished(ended(made, "FINISHED_ERROR", 0), BLOCKS) == (False, None)
