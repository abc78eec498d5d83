"""One producer rank as its consumer sees it: handshake, liveness, restarts."""

from __future__ import annotations

from collections import deque

from pdkv_connector.session.messages import Welcome
from pdkv_connector.session.states import PEER, Machine, PeerPhase


class ConsumerPeer:
    """A dialled producer. Its PeerId is its endpoint `host:port`; `instance` tells its processes apart.

    `silent_s` counts the seconds for which an answer was waited and listened for.
    """

    def __init__(self, endpoint: str, now: float) -> None:
        self.endpoint = endpoint
        self.machine: Machine[PeerPhase] = Machine(PEER, PeerPhase.GREETING)
        self.instance = ""
        self.welcome: Welcome | None = None
        self.gone: deque[str] = deque(maxlen=64)
        self.heard_at = now
        self.greeted_at = float("-inf")
        self.beat_at = float("-inf")
        self.silent_s = 0.0

    @property
    def ready(self) -> bool:
        """True when transfers may be registered."""
        return self.machine.state is PeerPhase.READY

    @property
    def greeting(self) -> bool:
        """True while a Hello is unanswered."""
        return self.machine.state is PeerPhase.GREETING

    def heard(self, now: float) -> None:
        """It gave a sign of life."""
        self.heard_at, self.silent_s = now, 0.0

    def greet(self, trigger: str, now: float) -> None:
        """Start a handshake over: `dial` after a loss or a refusal, `restart` when the process behind it may be new."""
        self.machine.fire(trigger)
        self.heard(now)
        self.greeted_at = float("-inf")

    def bury(self) -> None:
        """The process that answered so far is dead; what it sent may still come."""
        self.gone.append(self.instance)
        self.welcome, self.instance = None, ""

    def beat_every_s(self, heartbeat_s: float) -> float:
        """Interval of heartbeats; a short lease of the producer shortens it."""
        return min(heartbeat_s, self.welcome.lease_s / 3) if self.welcome else heartbeat_s
