"""What comes with a write: the header of the slab that has just landed."""

from __future__ import annotations

import logging

from pdkv_connector.errors import ProtocolError
from pdkv_connector.rare_log import RareLog
from pdkv_connector.session.events import Landed
from pdkv_connector.session.messages import Slab, decode

logger = logging.getLogger(__name__)


class Notifications:
    """Reads them; what is no sound header costs a count and, now and then, a line in the log."""

    def __init__(self) -> None:
        self.rejected = 0
        self._warnings = RareLog(logger)

    def read(self, notification: bytes) -> Landed | None:
        """The header and its sender's process, or None."""
        try:
            frame = decode(notification)
        except ProtocolError as error:
            self.rejected += 1
            self._warnings.warning("slab notification rejected (%d so far): %s", self.rejected, error)
            return None
        return Landed(frame.instance, frame.message) if isinstance(frame.message, Slab) else None
