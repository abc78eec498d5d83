"""Per-transfer events as JSON lines, for pictures and for tests."""

from __future__ import annotations

import logging
import time
from typing import IO

import msgspec

from pdkv_connector.session.messages import Slab
from pdkv_connector.types import TransferId

logger = logging.getLogger(__name__)


class TimelineWriter:
    """Appends one line per event to `path`; an empty path writes nothing. `t` is Unix time in seconds.

    Several threads may write: each line is one write of a line-buffered file.
    """

    def __init__(self, path: str) -> None:
        self._file: IO[str] | None = None
        self._encoder = msgspec.json.Encoder()
        if path:
            try:
                self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - closed by close()
            except OSError as error:
                logger.error("timeline_path=%r cannot be written, no timeline is kept: %s", path, error)

    @property
    def on(self) -> bool:
        """True when lines are kept."""
        return self._file is not None

    def note(self, side: str, event: str, transfer_id: TransferId, **details: object) -> None:
        """Write one event of `side` (producer or consumer)."""
        if self._file is None:
            return
        line = {"t": time.time(), "side": side, "event": event, "transfer_id": transfer_id, **details}
        try:
            self._file.write(self._encoder.encode(line).decode() + "\n")
        except (OSError, ValueError) as error:
            logger.error("timeline stops here: %s", error)
            self._file = None

    def slab(self, side: str, event: str, header: Slab) -> None:
        """Write an event about one slab; `layers` are positions in its want."""
        if self._file is not None:
            layers, tokens = [header.layers.start, header.layers.stop], [header.tokens.start, header.tokens.stop]
            self.note(
                side, event, header.transfer_id,
                seq=header.seq, want=header.want, layers=layers, tokens=tokens, bytes=header.encoded_bytes,
                codec=header.codec,
            )  # fmt: skip

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
