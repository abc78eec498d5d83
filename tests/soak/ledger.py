"""Everything that happened: results and outages, their verdicts, and the lines that tell of failures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from tests.soak.verdict import Outage, Result, Verdict, judge
from tests.soak.workload import Prompt

BAD: tuple[Verdict, ...] = ("wrong", "failed", "unclear", "hung")


@dataclass
class Ledger:
    """`reference` gives the right tokens of a prompt."""

    seed: int
    reference: Callable[[Prompt], Sequence[int]]
    results: list[Result] = field(default_factory=list)
    outages: dict[float, Outage] = field(default_factory=dict)

    def note_outage(self, outage: Outage) -> None:
        """An outage as it is known now; told apart by the time of the kill."""
        self.outages[outage.killed_at] = outage

    def verdict(self, result: Result) -> Verdict:
        """By what is known now."""
        return judge(result, self.reference(result.request.prompt), self.outages.values())

    def counts(self) -> dict[str, int]:
        """Requests by verdict, those with none included."""
        found = Counter(self.verdict(result) for result in self.results)
        return {verdict: found[verdict] for verdict in get_args(Verdict)}

    def orders(self) -> dict[str, int]:
        """Right answers by order of dispatch."""
        return dict(Counter(result.request.order for result in self.results if self.verdict(result) == "right"))

    def errors(self) -> dict[str, int]:
        """Messages of requests that failed during an outage, which is allowed."""
        reasons = [result.reason for result in self.results if self.verdict(result) == "excused"]
        return dict(Counter(re.sub(r"^http://\S+ ", "", reason) for reason in reasons))  # whichever proxy said so

    def complaints(self) -> list[str]:
        """A line for each request that ended as none may, with what replays it."""
        return [self._complaint(verdict, result) for result in self.results if (verdict := self.verdict(result)) in BAD]

    def _complaint(self, verdict: Verdict, result: Result) -> str:
        got = f"tokens {list(result.token_ids)}, right are {list(self.reference(result.request.prompt))}"
        what = got if verdict == "wrong" else result.reason or "no answer"
        together = sorted(
            other.request.number
            for other in self.results
            if other.sent_at <= result.ended_at and other.ended_at >= result.sent_at
        )
        replay = f"--seed {self.seed} --requests {' '.join(map(str, together))}"
        return f"{verdict}: {result.request.describe()}, transfer {result.transfer_id or '?'}: {what}; replay: {replay}"

    def outage_rows(self) -> list[dict[str, Any]]:
        """Seconds down, and seconds from health to the first delivery; None for what never came."""
        return [_row(outage) for _, outage in sorted(self.outages.items())]


def _row(outage: Outage) -> dict[str, Any]:
    def between(start: float | None, stop: float | None) -> float | None:
        return None if start is None or stop is None else round(stop - start, 2)

    return {
        "side": outage.side,
        "down_s": between(outage.killed_at, outage.healthy_at),
        "recovery_s": between(outage.healthy_at, outage.recovered_at),
    }
