"""Log lines about what a peer, a client or a bad situation can cause as often as it likes."""

from __future__ import annotations

import logging
import time

INTERVAL_S = 5.0


class RareLog:
    """One subject's lines: at most one each `INTERVAL_S`, which tells how many before it were left out."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._last_s = float("-inf")
        self._num_left_out = 0

    def warning(self, text: str, *values: object) -> None:
        """Log `text % values`, unless the last line was just now."""
        self._log(logging.WARNING, text, values)

    def error(self, text: str, *values: object) -> None:
        """The same for what should never happen, or costs a request."""
        self._log(logging.ERROR, text, values)

    def exception(self, text: str, *values: object) -> None:
        """The same, with the traceback of the exception at hand."""
        self._log(logging.ERROR, text, values, traced=True)

    def _log(self, level: int, text: str, values: tuple[object, ...], traced: bool = False) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s < INTERVAL_S:
            self._num_left_out += 1
            return
        if self._num_left_out:
            text, values = f"{text} (and %d more like it since the last line)", (*values, self._num_left_out)
        self._last_s, self._num_left_out = now_s, 0
        self._logger.log(level, text, *values, exc_info=traced, stacklevel=3)
