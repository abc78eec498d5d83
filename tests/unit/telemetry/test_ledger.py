"""What becomes of transfers between real ranks, as it is counted and as the log tells it."""

from __future__ import annotations

import logging

import pytest

from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.telemetry.causes import _CAUSES, cause_of
from pdkv_connector.telemetry.ledger import Ledger
from pdkv_connector.telemetry.transfer_record import CONSUMER, TransferRecord
from pdkv_connector.transport.loopback import Fate, LoopbackTransport
from pdkv_connector.types import Span
from tests.unit.runtime.conftest import OpenRank, decode, open_rank, prefill
from tests.unit.runtime.prompts import NUM_LAYERS, Prompt
from tests.unit.runtime.rank import toy_facts, wait_until
from tests.unit.runtime.roles import Decode, Prefill
from tests.unit.runtime.test_faults import FirstTry

__all__ = ["decode", "open_rank", "prefill"]


def lines(caplog: pytest.LogCaptureFixture, side: str) -> list[str]:
    told = [record.getMessage() for record in caplog.records]
    return [line for line in told if line.startswith(f"{side} transfer ")]


def counts(role: Prefill | Decode) -> dict[str, int]:
    return role.rank.runtime.ledger.tally.counts()


def ended(role: Prefill | Decode) -> dict[str, int]:
    """Without refusals, which late messages of a transfer that is over may cause."""
    return {name: count for name, count in counts(role).items() if name.startswith("transfers,")}


def test_one_line_a_side_with_the_whole_timeline(
    open_rank: OpenRank, decode: Decode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    prefill = Prefill(open_rank("cpu_amx", 32, transport=LoopbackTransport(FirstTry(Fate.CORRUPT, 1))))
    prompt = Prompt(200)
    decode.want(prompt, prefill)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    prefill.rank.wait_released(prompt)
    (sent,), (received,) = lines(caplog, "producer"), lines(caplog, "consumer")
    volume = f"199 tokens, 0.1 MB of KV as 0.1 MB (raw, ratio 1.00) in {decode.rank.num_slabs} slabs, 1 again"
    assert sent.startswith(f"producer transfer {prompt.transfer_id} to nhd rank 0: delivered | seconds since queued: ")
    endpoint = prefill.endpoint
    start = f"consumer transfer {prompt.transfer_id} from {endpoint}: delivered | seconds since registered: "
    assert received.startswith(start)
    assert sent.endswith(volume)
    assert received.endswith(volume)
    for line, moments in (
        (sent, ["first slab", "last slab", "prefill ended", "delivered", "released"]),
        (received, ["first slab", "last slab", "delivered"]),
    ):
        told = line.split(" | ")[1].partition(": ")[2].split(", ")
        assert sorted(moment.rpartition(" ")[0] for moment in told) == sorted(moments)
        assert told[0].startswith("first slab")
        seconds = [float(moment.rpartition(" ")[2]) for moment in told]
        assert seconds == sorted(seconds)
    assert counts(prefill) == {"transfers,producer,delivered": 1}
    assert counts(decode) == {"transfers,consumer,delivered": 1, "damaged_slabs": 1}


def test_a_failure_tells_its_reason_on_both_sides(
    prefill: Prefill, decode: Decode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    prompt = Prompt(200)
    decode.want(prompt, prefill)
    prefill.offer(prompt)
    prefill.compute(prompt, Span(0, 64))
    decode.rank.wait_slabs(1)
    prefill.withdraw(prompt, "prefill request ended as FINISHED_ABORTED")
    decode.rank.wait_failed(prompt)
    prefill.rank.wait_released(prompt)
    why = "prefill request ended as FINISHED_ABORTED"
    assert f"to nhd rank 0: withdrawn ({why}) | " in lines(caplog, "producer")[0]
    assert f": withdrawn (producer {prefill.endpoint} gave up: {why}) | " in lines(caplog, "consumer")[0]
    assert ended(prefill) == {"transfers,producer,withdrawn": 1}
    assert ended(decode) == {"transfers,consumer,withdrawn": 1}
    assert prefill.rank.runtime.ledger.num_open == decode.rank.runtime.ledger.num_open == 0


def test_a_full_hit_is_not_a_delivery(prefill: Prefill, decode: Decode) -> None:
    prompt = Prompt(40)
    decode.want(prompt, prefill, needs=(Span(0, 0),) * NUM_LAYERS)
    prefill.run(prompt)
    prefill.rank.wait_released(prompt)
    decode.rank.wait_delivered(prompt)
    assert counts(prefill) == {"transfers,producer,not_needed": 1}
    assert counts(decode) == {"transfers,consumer,not_needed": 1}
    assert decode.rank.runtime.ledger.tally.take_observed() == {}


def test_a_lease_that_ends_is_counted_and_warned_of(open_rank: OpenRank, caplog: pytest.LogCaptureFixture) -> None:
    prefill = Prefill(open_rank(lease_s=1))
    prompt = Prompt(40)
    prefill.run(prompt)
    prefill.rank.wait_released(prompt)
    assert counts(prefill) == {"transfers,producer,lease_expired": 1}
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_refusals_are_counted_where_they_are_said_and_heard(open_rank: OpenRank, prefill: Prefill) -> None:
    decode = Decode(open_rank(facts=toy_facts(model="other")))
    prompt = Prompt(40)
    decode.want(prompt, prefill)
    decode.rank.wait_failed(prompt)
    wait_until(lambda: counts(prefill).get("refusals,producer,handshake,incompatible", 0) > 0, "refusal")
    assert counts(decode)["refusals,consumer,handshake,incompatible"] >= 1
    assert counts(decode)["transfers,consumer,incompatible"] == 1


def test_what_only_a_peer_names_is_not_remembered() -> None:
    ledger = Ledger()
    slab = act.SlabKey(act.LegKey("stranger", "peer", 1), 0)
    ledger.saw(ev.Damaged(slab, "checksum"), 0.0)
    ledger.saw(ev.Finished("stranger"), 0.0)
    assert ledger.num_open == 0


def test_a_fault_of_the_ledger_costs_no_transfer(
    prefill: Prefill, decode: Decode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(TransferRecord, "line", lambda *_: 1 / 0)
    prompt = Prompt(100)
    decode.want(prompt, prefill)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    prefill.rank.wait_released(prompt)
    assert decode.faults() == []
    assert "transfers may be counted wrong: Deliver" in caplog.text


def test_a_line_is_one_line_whatever_names_it_quotes() -> None:
    line = TransferRecord(CONSUMER, "t\nERROR all is lost\x1b[2J", 0.0, ["peer\r"]).line("other", "a\nb", 1.0)
    assert line.isprintable()
    assert line == (
        "consumer transfer t?ERROR all is lost?[2J from peer?: other (a?b) | seconds since registered: ended 1.000 | "
        "no KV moved"
    )


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("delivered", "delivered"),
        ("aborted by consumer: delivered", "consumer_aborted"),
        ("aborted by consumer: decode request ended as FINISHED_ABORTED", "cancelled"),
        ("producer h:1 refused: transfer ended: lease expired: no consumer came within 30 s", "lease_expired"),
        ("producer h:1 refused the handshake: engine_id differs (the producer restarted, or ...)", "incompatible"),
        ("producer h:1 did not answer for 10 s", "peer_silent"),
        ("", "other"),
        ("whatever a peer says", "other"),
    ],
)
def test_reasons_are_sorted_by_their_root(reason: str, cause: str) -> None:
    assert cause_of(reason) == cause


@pytest.mark.parametrize(
    ("reason", "level"),
    [
        ("decode request ended as FINISHED_ABORTED", "INFO"),
        ("withdrawn: prefill request ended as FINISHED_ABORTED", "INFO"),
        ("delivered", "INFO"),
        ("producer h:1 did not answer for 10 s", "WARNING"),
    ],
)
def test_a_client_that_leaves_is_nothing_to_warn_of(reason: str, level: str, caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    with caplog.at_level("INFO"):
        ledger.did(act.Release("t", reason))
    assert [record.levelname for record in caplog.records] == [level]


def test_no_cause_is_out_of_reach() -> None:
    """Each phrase decides for itself, not one before it that it contains."""
    assert [cause_of(phrase) for phrase, _ in _CAUSES] == [cause for _, cause in _CAUSES]
