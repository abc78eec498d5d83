"""The three state machines as tables; ARCHITECTURE.md draws its diagrams from them.

A table maps `(state, trigger)` to the next state. A trigger that a state does not list is a fault of this package, not
of a peer: sessions filter what peers send before they fire.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Generic, TypeVar

from pdkv_connector.errors import ProtocolError


class ProducerPhase(enum.StrEnum):
    """Life of one transfer on a prefill rank."""

    AWAITING_REQUEST = "awaiting_request"
    AWAITING_CONSUMER = "awaiting_consumer"
    STREAMING = "streaming"
    FENCING = "fencing"
    CLOSED = "closed"


class ConsumerPhase(enum.StrEnum):
    """Life of one transfer on a decode rank."""

    CONNECTING = "connecting"
    REGISTERING = "registering"
    RECEIVING = "receiving"
    DELIVERED = "delivered"
    FAILING = "failing"
    CLOSED = "closed"


class PeerPhase(enum.StrEnum):
    """A producer rank as its consumers see it."""

    GREETING = "greeting"
    READY = "ready"
    REFUSED = "refused"
    LOST = "lost"


State = TypeVar("State", bound=enum.StrEnum)

_P, _C, _E = ProducerPhase, ConsumerPhase, PeerPhase

PRODUCER: Mapping[tuple[ProducerPhase, str], ProducerPhase] = {
    (_P.AWAITING_REQUEST, "offered"): _P.STREAMING,
    (_P.AWAITING_REQUEST, "consumers_gone"): _P.CLOSED,
    (_P.AWAITING_REQUEST, "lease_expired"): _P.CLOSED,
    (_P.AWAITING_CONSUMER, "registered"): _P.STREAMING,
    (_P.AWAITING_CONSUMER, "consumers_gone"): _P.CLOSED,
    (_P.AWAITING_CONSUMER, "withdrawn"): _P.CLOSED,
    (_P.AWAITING_CONSUMER, "lease_expired"): _P.CLOSED,
    (_P.AWAITING_CONSUMER, "reclaimed"): _P.CLOSED,
    (_P.STREAMING, "consumers_gone"): _P.CLOSED,
    (_P.STREAMING, "lease_expired"): _P.CLOSED,
    (_P.STREAMING, "reclaimed"): _P.FENCING,
    (_P.STREAMING, "withdrawn"): _P.FENCING,
    (_P.FENCING, "consumers_gone"): _P.CLOSED,
}

CONSUMER: Mapping[tuple[ConsumerPhase, str], ConsumerPhase] = {
    (_C.CONNECTING, "welcomed"): _C.REGISTERING,
    (_C.CONNECTING, "failed"): _C.FAILING,
    (_C.REGISTERING, "acknowledged"): _C.RECEIVING,
    (_C.REGISTERING, "failed"): _C.FAILING,
    (_C.RECEIVING, "complete"): _C.DELIVERED,
    (_C.RECEIVING, "failed"): _C.FAILING,
    (_C.DELIVERED, "closed"): _C.CLOSED,
    (_C.FAILING, "closed"): _C.CLOSED,
}

PEER: Mapping[tuple[PeerPhase, str], PeerPhase] = {
    (_E.GREETING, "welcome"): _E.READY,
    (_E.GREETING, "refuse"): _E.REFUSED,
    (_E.GREETING, "silence"): _E.LOST,
    (_E.READY, "restart"): _E.GREETING,
    (_E.READY, "silence"): _E.LOST,
    (_E.REFUSED, "dial"): _E.GREETING,
    (_E.LOST, "dial"): _E.GREETING,
}


class Machine(Generic[State]):
    """A current state and the table it moves by."""

    __slots__ = ("_table", "state")

    def __init__(self, table: Mapping[tuple[State, str], State], start: State) -> None:
        self._table = table
        self.state = start

    def can(self, trigger: str) -> bool:
        """True when `trigger` is listed for the current state."""
        return (self.state, trigger) in self._table

    def fire(self, trigger: str) -> State:
        """Move along `trigger`. Raises ProtocolError when the table has no such arrow."""
        try:
            self.state = self._table[self.state, trigger]
        except KeyError:
            raise ProtocolError(f"no transition from {self.state} on {trigger!r}") from None
        return self.state
