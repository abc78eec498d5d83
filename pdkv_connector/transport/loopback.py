"""In-process transport: endpoints of one process find each other through a process-global hub and copy with memmove.

The copy happens inside `write`; completion and notification are queued for `poll`, so data is there before either.
Endpoints may live in different threads; each single endpoint is used by one thread.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable

from pdkv_connector.errors import TransportError
from pdkv_connector.transport.base import Memory, Notified, TransportEvent, WriteDone, WriteFailed
from pdkv_connector.types import PeerId


class Fate(enum.Enum):
    """What befalls one write."""

    DELIVER = "deliver"
    LOSE_NOTIFICATION = "lose_notification"
    FAIL = "fail"
    CORRUPT = "corrupt"


Faults = Callable[[bytes], Fate]
"""Decides the fate of a write from the notification it carries; called in the writer's thread."""


class LoopbackTransport:
    """`Transport` between endpoints of one process. `faults` makes chosen writes go wrong; `None` never looks."""

    def __init__(self, faults: Faults | None = None) -> None:
        self._token = uuid.uuid4().hex
        self._faults = faults
        self._lock = threading.Lock()
        self._memories: list[Memory] = []
        self._events: deque[TransportEvent] = deque()
        self._peers: dict[PeerId, str] = {}
        self._write_ids = itertools.count(1)
        self._closed = False
        _hub[self._token] = self

    @property
    def name(self) -> str:
        return "loopback"

    def register(self, memory: Memory) -> None:
        if memory.kind != "DRAM":
            raise TransportError(f"loopback copies host memory only, got kind {memory.kind!r}: use transport 'nixl'")
        if memory.address <= 0 or memory.num_bytes <= 0:
            raise TransportError(f"cannot register {memory}: address and num_bytes must be positive")
        with self._lock:
            self._memories.append(memory)

    def metadata(self) -> bytes:
        return self._token.encode()

    def connect(self, peer: PeerId, metadata: bytes) -> None:
        token = metadata.decode("ascii", errors="replace")
        if token not in _hub:
            raise TransportError(f"peer {peer!r}: no loopback endpoint {token[:40]!r} in this process")
        self._peers[peer] = token

    def write(self, peer: PeerId, source: Memory, target: Memory, notification: bytes) -> int:
        token = self._peers.get(peer)
        if self._closed or token is None:
            raise TransportError(f"peer {peer!r} is not connected: call connect() before write()")
        if source.num_bytes != target.num_bytes or source.num_bytes <= 0:
            raise TransportError(
                f"source has {source.num_bytes} bytes, target {target.num_bytes}: both must be equal and positive"
            )
        if not self._holds(source):
            raise TransportError(f"source {source} is not inside registered memory: call register() first")
        write_id = next(self._write_ids)
        fate = self._faults(notification) if self._faults else Fate.DELIVER
        reason = _carry_out(_hub.get(token), source, target, notification, fate)
        self._events.append(WriteFailed(write_id, f"peer {peer!r}: {reason}") if reason else WriteDone(write_id))
        return write_id

    def poll(self) -> list[TransportEvent]:
        return [self._events.popleft() for _ in range(len(self._events))]

    def disconnect(self, peer: PeerId) -> None:
        self._peers.pop(peer, None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._memories.clear()
        self._peers.clear()
        self._events.clear()
        _hub.pop(self._token, None)

    def _holds(self, memory: Memory) -> bool:
        return any(registered.contains(memory) for registered in self._memories)

    def _accept(self, source: Memory, target: Memory, notification: bytes, fate: Fate) -> str:
        """Take one write; returns why not, or an empty string. Runs in the writer's thread."""
        with self._lock:
            if self._closed:
                return "its endpoint is closed"
            if not self._holds(target):
                return f"target {target} is not inside memory it registered"
            ctypes.memmove(target.address, source.address, source.num_bytes)
            if fate is Fate.CORRUPT:
                _flip_first_byte(target)
            if fate is not Fate.LOSE_NOTIFICATION:
                self._events.append(Notified(notification))
        return ""


_hub: weakref.WeakValueDictionary[str, LoopbackTransport] = weakref.WeakValueDictionary()


def _carry_out(
    endpoint: LoopbackTransport | None, source: Memory, target: Memory, notification: bytes, fate: Fate
) -> str:
    if fate is Fate.FAIL:
        return "failed by fault injection"
    if endpoint is None:
        return "its endpoint is gone"
    return endpoint._accept(source, target, notification, fate)


def _flip_first_byte(memory: Memory) -> None:
    ctypes.c_uint8.from_address(memory.address).value ^= 0xFF
