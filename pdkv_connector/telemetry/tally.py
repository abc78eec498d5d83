"""Counts and durations, written by one thread and read by another."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict

MAX_OBSERVED = 4096
"""Durations of one metric that are kept until somebody takes them."""


class Tally:
    """What happened how often since the start, by series name, and how long things took since last asked."""

    def __init__(self) -> None:
        self.num_counted = 0
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._observed: dict[str, list[float]] = defaultdict(list)

    def count(self, series: str) -> None:
        """It happened once more."""
        with self._lock:
            self._counts[series] += 1
            self.num_counted += 1

    def observe(self, metric: str, seconds: float) -> None:
        """Something took `seconds`."""
        with self._lock:
            if len(self._observed[metric]) < MAX_OBSERVED:
                self._observed[metric].append(seconds)

    def counts(self) -> dict[str, int]:
        """A copy of all counts."""
        with self._lock:
            return dict(self._counts)

    def take_observed(self) -> dict[str, list[float]]:
        """Durations by metric, each handed out once."""
        if not self._observed:
            return {}
        with self._lock:
            taken = dict(self._observed)
            self._observed.clear()
        return taken
