"""What the runtime has to tell the engine, handed over between threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from pdkv_connector.types import TransferId


@dataclass(slots=True)
class Outcome:
    """News since the last look: transfers whose blocks may be freed, that arrived, or that failed (with the reason).

    `digests` are of received KV, here and at the producer.
    """

    released: set[TransferId] = field(default_factory=set)
    delivered: set[TransferId] = field(default_factory=set)
    failed: dict[TransferId, str] = field(default_factory=dict)
    digests: dict[TransferId, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.released or self.delivered or self.failed or self.digests)


class Results:
    """Filled by the runtime's thread, emptied by the engine's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcome = Outcome()

    def release(self, transfer_id: TransferId) -> None:
        """The blocks of a sent transfer may be freed."""
        with self._lock:
            self._outcome.released.add(transfer_id)

    def deliver(self, transfer_id: TransferId) -> None:
        """A received transfer is whole."""
        with self._lock:
            self._outcome.delivered.add(transfer_id)

    def fail(self, transfer_id: TransferId, reason: str) -> None:
        """A transfer will not be received."""
        with self._lock:
            self._outcome.failed[transfer_id] = reason

    def verify(self, transfer_id: TransferId, local: tuple[str, ...], remote: tuple[str, ...]) -> None:
        """Digests of a received transfer, here and at the producer; more legs add to them."""
        with self._lock:
            ours, theirs = self._outcome.digests.get(transfer_id, ((), ()))
            self._outcome.digests[transfer_id] = (ours + local, theirs + remote)

    def take(self) -> Outcome | None:
        """The news, or None; costs nothing when there is none."""
        if not self._outcome:
            return None
        with self._lock:
            outcome, self._outcome = self._outcome, Outcome()
        return outcome
