"""A discrete-event loop: calls in order of simulated time, ties in order of scheduling."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Loop:
    """`now` is simulated seconds; nothing here waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._num_calls = 0

    def __len__(self) -> int:
        return len(self._heap)

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Run `call` `delay_s` from now."""
        self._num_calls += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._num_calls, call))

    def run(self) -> None:
        """Run until nothing is scheduled."""
        while self._heap:
            self.now, _, call = heapq.heappop(self._heap)
            call()
