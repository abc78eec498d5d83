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

NOTICE_S = 10.0
"""Every proxy finds out by itself that a server is back: it looks each 2 s, and probes."""


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
        """True when the request was under way at some time between kill and recovery, as every proxy sees it."""
        over_at = float("inf") if self.recovered_at is None else self.recovered_at + NOTICE_S
        return result.ended_at >= self.killed_at and result.sent_at <= over_at


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
