"""Wakes a polling thread from any other thread."""

from __future__ import annotations

import contextlib
import os
import threading


class Waker:
    """An eventfd: `wake` is thread-safe and coalesces; the waiting thread polls `fileno()` and calls `drain`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def wake(self) -> None:
        """Make `fileno()` readable. Does nothing once closed."""
        with self._lock:  # a closed descriptor number may already belong to another file
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def drain(self) -> None:
        """Make `fileno()` unreadable until the next `wake`."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
