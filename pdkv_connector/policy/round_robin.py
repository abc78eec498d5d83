"""Round robin that skips what is unhealthy."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class RoundRobin:
    """Takes turns over `names`; a name that is skipped loses its turn, not its place."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._next = 0

    def pick(self, healthy: Collection[str]) -> str | None:
        """Return the next name that is in `healthy`, or None when none is."""
        for offset in range(len(self._names)):
            index = (self._next + offset) % len(self._names)
            if self._names[index] in healthy:
                self._next = (index + 1) % len(self._names)
                return self._names[index]
        return None
