"""Control connections under the names that sessions use."""

from __future__ import annotations

import logging

from pdkv_connector.errors import PdkvError
from pdkv_connector.rare_log import RareLog
from pdkv_connector.session.messages import Message
from pdkv_connector.transport.control import ControlPlane
from pdkv_connector.types import PeerId

logger = logging.getLogger(__name__)

INBOUND = "from:"
"""Consumers dialled us and go by their connection; producers are dialled and go by their endpoint."""


class Links:
    """Dials producers on first use and translates names both ways. One thread."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._unsendable = RareLog(logger)
        self._endpoint_of: dict[PeerId, str] = {}
        self._dialled: dict[str, PeerId] = {}

    def session_name(self, peer: PeerId) -> str:
        """What sessions call a control connection."""
        return self._endpoint_of.get(peer, peer)

    def send(self, peer: PeerId, message: Message) -> str:
        """Send, as well as a datagram would; returns why it can never arrive, or an empty string."""
        try:
            self._control.send(self._control_name(peer), message)
        except PdkvError as error:
            self._unsendable.error("cannot send %s to %s: %s", type(message).__name__, peer, error)
            return str(error)
        return ""

    def hang_up(self, peer: PeerId) -> None:
        """Close the connection dialled to `peer`; an inbound one is its dialler's to close."""
        dialled = self._dialled.pop(peer, None)
        if dialled is not None:
            self._endpoint_of.pop(dialled, None)
            self._control.hang_up(dialled)

    def _control_name(self, peer: PeerId) -> PeerId:
        if peer.startswith(INBOUND):
            return peer
        if peer not in self._dialled:
            self._dialled[peer] = self._control.dial(peer)
            self._endpoint_of[self._dialled[peer]] = peer
        return self._dialled[peer]
