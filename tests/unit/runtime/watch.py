"""What must not happen to ranks under fire: memory grows, a thread dies, a fault that only the catch-all sees."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.unit.runtime.rank import Rank

LOGGER = logging.getLogger("pdkv_connector")
UNEXPECTED = "unexpected fault"
"""How the log lines begin that stand for a fault nobody thought of."""


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Watch(logging.Handler):
    """Counts to a `Report` give it the sizes. It keeps the log to itself: a test's own record of it would grow."""

    def __init__(self, *ranks: Rank) -> None:
        super().__init__()
        self._ranks = ranks
        self.num_lines = 0
        self.unexpected: list[str] = []
        self.sizes: list[int] = []

    def __call__(self, _number: int, size: int) -> None:
        self.sizes.append(size)

    def emit(self, record: logging.LogRecord) -> None:
        self.num_lines += 1
        if record.msg.startswith(UNEXPECTED):
            self.unexpected.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")

    @property
    def growth_bytes(self) -> int:
        """From the first tenth, when all is loaded, to the end."""
        return self.sizes[-1] - self.sizes[1]

    @property
    def alive(self) -> bool:
        """True while every rank's thread turns."""
        return all(rank.runtime._thread.is_alive() for rank in self._ranks)


@contextmanager
def watching(*ranks: Rank) -> Iterator[Watch]:
    """Hears all that is logged meanwhile."""
    watch, propagated = Watch(*ranks), LOGGER.propagate
    LOGGER.addHandler(watch)
    LOGGER.propagate = False
    try:
        yield watch
    finally:
        LOGGER.propagate = propagated
        LOGGER.removeHandler(watch)
