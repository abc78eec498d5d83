"""Warnings about what strangers can cause as often as they like."""

from __future__ import annotations

import logging
import time

INTERVAL_S = 5.0

_logger = logging.getLogger("pdkv_connector.transport.control")


class RareWarnings:
    """One subject's warnings: one is logged each `INTERVAL_S`, the others pass."""

    def __init__(self, logger: logging.Logger = _logger) -> None:
        self._logger = logger
        self._last_s = -INTERVAL_S

    def warn(self, text: str, *values: object) -> None:
        """Log `text % values`, unless the last warning was just now."""
        now_s = time.monotonic()
        if now_s - self._last_s >= INTERVAL_S:
            self._last_s = now_s
            self._logger.warning(text, *values)
