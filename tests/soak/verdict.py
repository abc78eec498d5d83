"""How one request ended, and whether it was allowed to end so. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.soak.workload import Request

End = Literal["complete", "aborted", "failed", "hung"]
Verdict = Literal["right", "wrong", "aborted", "excused", "failed", "unclear", "hung"]

CLEAR_ERROR = re.compile(r"(prefill|decode) server http://\S+ \w+")
"""An error names the server and says what it did or has not done."""


@dataclass(frozen=True)
class Result:
    """What a client saw of one request; times are unix seconds."""

    request: Request
    end: End
    token_ids: Sequence[int]
    sent_at: float
    ended_at: float
    reason: str = ""
    transfer_id: str = ""


@dataclass(frozen=True)
class Outage:
    """A side was killed and is back; times are unix seconds, None for what has not happened."""

    side: str
    killed_at: float
    healthy_at: float | None = None
    recovered_at: float | None = None

    def touches(self, result: Result) -> bool:
        """True when the request was under way at some time between kill and recovery."""
        return result.ended_at >= self.killed_at and (self.recovered_at is None or result.sent_at <= self.recovered_at)


def judge(result: Result, reference: Sequence[int], outages: Iterable[Outage]) -> Verdict:
    """Tokens come first: however a request ended, no token it has shown may be wrong."""
    expected = list(reference[: result.request.num_tokens])
    if list(result.token_ids) != expected[: len(result.token_ids)]:
        return "wrong"
    if result.end == "complete":
        return "right" if len(result.token_ids) == len(expected) else "wrong"
    if result.end != "failed":
        return result.end
    if not CLEAR_ERROR.search(result.reason):
        return "unclear"
    return "excused" if any(outage.touches(result) for outage in outages) else "failed"
