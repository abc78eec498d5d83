"""The Transport protocol: one-sided writes with a notification, polled, never blocking.

A transport moves bytes between registered buffers of two processes. It knows nothing of slabs, sessions or KV. All
methods are called from one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pdkv_connector.types import PeerId

WRITE_LIMIT_S = 10.0
"""Where nobody says otherwise, a write that has not ended after this long is stuck."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A registered buffer: `address` and `num_bytes` as the transport sees them, `kind` is DRAM or VRAM."""

    address: int
    num_bytes: int
    device_id: int = 0
    kind: str = "DRAM"

    def contains(self, other: Memory) -> bool:
        """True when `other` lies wholly inside this memory, of the same kind and device."""
        return (
            (self.kind, self.device_id) == (other.kind, other.device_id)
            and self.address <= other.address
            and other.num_bytes >= 0
            and other.address + other.num_bytes <= self.address + self.num_bytes
        )


@dataclass(frozen=True, slots=True)
class WriteDone:
    """Write `write_id` is complete: its source may be reused."""

    write_id: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """Write `write_id` did not complete, for `reason`: its source may be reused; the target may hold any part of it."""

    write_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Notified:
    """A peer's write has landed in local memory; `payload` is the notification it carried."""

    payload: bytes


TransportEvent = WriteDone | WriteFailed | Notified


class Transport(Protocol):
    """One-sided writes with notification. Failures raise TransportError or arrive as WriteFailed; nothing blocks."""

    @property
    def name(self) -> str:
        """Name both sides must share, such as `nixl` or `loopback`."""

    def register(self, memory: Memory) -> None:
        """Make `memory` usable as a source and as a target. Raises TransportError."""

    def metadata(self) -> bytes:
        """What a peer needs to `connect` to this process; call it after `register`."""

    def connect(self, peer: PeerId, metadata: bytes) -> None:
        """Prepare writes to `peer`. Connecting again with new metadata replaces the old. Raises TransportError."""

    def write(self, peer: PeerId, source: Memory, target: Memory, notification: bytes) -> int:
        """Start copying `source` to `peer`'s `target`; returns a write id. Raises TransportError if it cannot."""

    def poll(self) -> list[TransportEvent]:
        """Completions and notifications since the last call."""

    def disconnect(self, peer: PeerId) -> None:
        """Forget `peer`; its writes in flight end as WriteFailed. Unknown peers are ignored."""

    def close(self) -> None:
        """Release everything; safe to call twice."""
