"""What `pdkv top` says of one engine: how things are now, and how fast they changed of late."""

from __future__ import annotations

from collections import deque

from pdkv_connector.cli.scrape import Scrape
from pdkv_connector.telemetry.metrics import METRICS

WINDOW_S = 10.0
"""Rates are means over so long: an engine reports once a second, and a shorter look would see it jump."""
ROLES = {"kv_producer": "P", "kv_consumer": "D", "kv_both": "P+D"}
WELL = ("delivered", "not_needed")


class EngineView:
    """One engine at `url`; `see` each look at it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = url.partition("://")[2]
        self._seen: deque[Scrape] = deque()

    def see(self, look: Scrape) -> None:
        """Take the newest look; after a fault or a restart nothing older counts."""
        if look.fault or (self._seen and self._restarted(look)):
            self._seen.clear()
        while len(self._seen) > 1 and look.at - self._seen[1].at >= WINDOW_S:
            self._seen.popleft()
        self._seen.append(look)

    def _restarted(self, look: Scrape) -> bool:
        name = "process_start_time_seconds"
        return look.total(name) != self._seen[-1].total(name)

    @property
    def now(self) -> Scrape:
        """The newest look."""
        return self._seen[-1]

    @property
    def fault(self) -> str:
        """Why the engine shows nothing; empty when it does."""
        return self.now.fault

    @property
    def role(self) -> str:
        """P, D or both."""
        (role,) = next(iter(self.now.by(METRICS["info"].sample_name, "role")), ("",))
        return ROLES.get(role, role)

    def value(self, name: str, **labels: str) -> float:
        """A metric of ours, 0 where it has not been seen yet."""
        return self.now.total(METRICS[name].sample_name, **labels) or 0.0

    def rate(self, name: str) -> float | None:
        """Increase of a counter per second; None after a single look."""
        first, last = self._seen[0], self.now
        if last.at <= first.at:
            return None
        sample = METRICS[name].sample_name
        return max(0.0, (last.total(sample) or 0.0) - (first.total(sample) or 0.0)) / (last.at - first.at)

    def mean_s(self, name: str) -> float | None:
        """Mean of a histogram since the engine started; None when nothing was observed."""
        full = METRICS[name].full_name
        count = self.now.total(f"{full}_count")
        return (self.now.total(f"{full}_sum") or 0.0) / count if count else None

    def counted(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """A counter by the values of some of its labels, those at 0 left out."""
        return self.now.by(METRICS[name].sample_name, *labels)

    @property
    def num_well(self) -> float:
        """Transfers that ended as they should."""
        return sum(number for (outcome,), number in self.counted("transfers", "outcome").items() if outcome in WELL)

    @property
    def num_badly(self) -> float:
        """Transfers that ended otherwise."""
        return sum(number for (outcome,), number in self.counted("transfers", "outcome").items() if outcome not in WELL)
