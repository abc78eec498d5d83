"""What the connectors recorded of their transfers, read from their timelines."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENDS = {"finished": {"closed"}, "registered": {"complete", "failed"}}
"""What must follow: a producer that holds blocks after its prefill lets go, a consumer that waits gets an answer."""


@dataclass(frozen=True)
class Transfers:
    """Of one life: deliveries, failures by reason with numbers left out, and transfers that nothing has ended."""

    delivered: int
    failures: dict[str, int]
    open: list[str]


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Events in the order written. A last line still being written, or cut off by a kill, is left out."""
    if path.exists():
        with path.open() as lines:
            yield from (json.loads(line) for line in lines if line.endswith("}\n"))


def is_delivery(event: dict[str, Any]) -> bool:
    """True where a consumer has all its KV, or a producer was told so."""
    return event["event"] == "complete" or event.get("outcome") == "delivered"


def first_delivery(path: Path) -> float | None:
    """When the first transfer of a life was delivered, in unix seconds; None while none was."""
    return next((event["t"] for event in read(path) if is_delivery(event)), None)


def transfers(events: Iterable[dict[str, Any]]) -> Transfers:
    """Sum up one life."""
    delivered, failures = 0, Counter[str]()
    seen: dict[str, set[str]] = defaultdict(set)
    for event in events:
        seen[event["transfer_id"]].add(event["event"])
        delivered += is_delivery(event)
        if reason := event.get("reason" if event["event"] == "failed" else "outcome"):
            failures[re.sub(r"[0-9a-f]{8,}|\d+", "N", reason)] += not is_delivery(event)
    unended = [
        transfer_id
        for transfer_id, names in seen.items()
        for begun, ends in ENDS.items()
        if begun in names and not ends & names
    ]
    return Transfers(delivered, dict(+failures), unended)
