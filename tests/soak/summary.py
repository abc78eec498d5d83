"""The figures of a soak, and the goals it has missed."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from pdkv_connector.telemetry.metrics import METRICS
from tests.soak import journal
from tests.soak.ledger import Ledger
from tests.soak.pair import Pair
from tests.soak.settle import Left
from tests.soak.watch import Watch


def figures(ledger: Ledger, pair: Pair, watch: Watch, left: dict[str, Left]) -> dict[str, Any]:
    """Everything that is recorded of a run, plain enough for JSON."""
    return {
        "requests": {"sent": len(ledger.results), **ledger.counts()},
        "right_by_order": ledger.orders(),
        "errors_in_outages": ledger.errors(),
        "outages": ledger.outage_rows(),
        "kv": _moved(watch),
        "transfers": {side.role: _transfers([life.timeline for life in side.lives]) for side in pair.sides},
        "recomputes": watch.by("decode", METRICS["recomputes"].sample_name, "cause"),
        "refusals": watch.by("decode", METRICS["refusals"].sample_name, "cause"),
        "decode_prompt_tokens": watch.by("decode", "vllm:prompt_tokens_by_source_total", "source"),
        "preemptions": {side.role: watch.total(side.role, "vllm:num_preemptions_total") for side in pair.sides},
        "memory": [growth.as_row() for growth in watch.growths()],
        "left": {role: found.as_row() for role, found in left.items()},
    }


def _moved(watch: Watch) -> dict[str, int]:
    sides = {
        "prefill": ("sent_slabs", "sent_kv_bytes", "sent_wire_bytes", "resent_slabs"),
        "decode": ("received_slabs", "received_kv_bytes", "received_wire_bytes", "damaged_slabs"),
    }
    return {name: watch.total(role, METRICS[name].sample_name) for role, names in sides.items() for name in names}


def _transfers(timelines: list[Any]) -> dict[str, Any]:
    lives = [asdict(journal.transfers(journal.read(path))) for path in timelines]
    failures: Counter[str] = Counter()
    for life in lives:
        failures.update(life["failures"])
    return {"delivered": sum(life["delivered"] for life in lives), "failures": dict(failures)}


def missed(found: dict[str, Any], complaints: list[str]) -> list[str]:
    """A line for each goal that was not reached; empty after a good run."""
    faults = list(complaints)
    if not found["requests"]["right"]:
        faults.append("no request was answered: nothing was tested")
    for role, transfers in found["transfers"].items():
        if not transfers["delivered"]:
            faults.append(f"{role} delivered no transfer: nothing was tested")
    for role, left in found["left"].items():
        faults += [f"{role} still holds {what}" for what in _held(left)]
    for outage in found["outages"]:
        if outage["recovery_s"] is None:
            faults.append(f"{outage['side']} was killed, and no transfer was delivered after that")
    return faults


def _held(left: dict[str, Any]) -> list[str]:
    held = []
    if left["kv_usage"] is None:
        held.append("an unknown share of its blocks: it does not answer")
    elif left["kv_usage"]:
        held.append(f"{100 * left['kv_usage']:.2f} % of its blocks after {left['after_s']} s of rest")
    if left["requests"]:
        held.append(f"{left['requests']} requests")
    if left["reserved"]:
        held.append(f"{left['reserved']} leases or tokens reserved for KV to come")
    if left["open_transfers"]:
        held.append(f"{len(left['open_transfers'])} transfers: {', '.join(left['open_transfers'][:5])}")
    return held
