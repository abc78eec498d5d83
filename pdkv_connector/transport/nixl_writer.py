"""Outgoing side of the NIXL transport: one agent, its remote agents, its writes in flight.

A writer with a write that outlived the time limit is *stuck*: it takes no new writes, finishes the others, and is then
destroyed, which is the one way to make sure that NIXL reads no source any more. Only then are stuck writes reported.
So is one that cannot load a peer it is to write to: UCX knows only the network devices that were up when it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pdkv_connector.errors import TransportError
from pdkv_connector.transport.base import Memory, TransportEvent, WriteDone, WriteFailed
from pdkv_connector.transport.nixl_agent import NixlAgent
from pdkv_connector.types import PeerId

_FORGET_LIMIT_S = 1.0


@dataclass(slots=True)
class _Flight:
    handle: object
    peer: PeerId
    remote: str
    deadline_s: float
    failure: str = ""


class NixlWriter:
    """Writes to remote agents through one local agent; `now` is of one monotonic clock, in seconds."""

    def __init__(self, backend: str, params: Mapping[str, str], memories: Iterable[Memory], limit_s: float) -> None:
        self._agent = NixlAgent(backend, params)
        self._limit_s = limit_s
        self._remotes: dict[str, bytes] = {}
        self._broken: set[str] = set()
        self._unwanted: set[str] = set()
        self._flights: dict[int, _Flight] = {}
        self._blind_s = float("inf")
        for memory in memories:
            self.register(memory)

    def register(self, memory: Memory) -> None:
        """Make `memory` usable as a source. Raises TransportError."""
        self._agent.register(memory)

    def load(self, metadata: bytes, now: float) -> str:
        """Make the agent that `metadata` describes writable; returns its name. Raises TransportError."""
        try:
            return self._load(metadata)
        except TransportError:
            self._blind_s = min(self._blind_s, now + self._limit_s)
            raise

    def _load(self, metadata: bytes) -> str:
        name = self._agent.add_remote(metadata)
        self._remotes[name] = metadata
        self._broken.discard(name)
        self._unwanted.discard(name)
        return name

    def expect(self, name: str, metadata: bytes) -> None:
        """Make a known agent writable; one that cannot be reached now is tried again by each write to it."""
        try:
            self._load(metadata)
        except TransportError:
            self._remotes[name] = metadata
            self._broken.add(name)

    def start(
        self, write_id: int, peer: PeerId, remote: str, source: Memory, target: Memory, notification: bytes, now: float
    ) -> None:
        """Post one write. Raises TransportError when it could not be posted."""
        if remote in self._broken and remote not in self._busy():
            self._agent.remove_remote(remote)
            self.load(self._remotes[remote], now)
        try:
            handle = self._agent.start(remote, source, target, notification)
        except TransportError:
            self._broken.add(remote)
            raise
        self._flights[write_id] = _Flight(handle, peer, remote, now + self._limit_s)

    def poll(self) -> list[TransportEvent]:
        """Writes that have ended since the last call."""
        events: list[TransportEvent] = []
        for write_id, flight in list(self._flights.items()):
            try:
                if not self._agent.is_done(flight.handle):
                    continue
            except TransportError as error:
                self._broken.add(flight.remote)
                flight.failure = flight.failure or str(error)
            del self._flights[write_id]
            self._agent.release(flight.handle)
            events.append(_failed(write_id, flight) if flight.failure else WriteDone(write_id))
        self._remove_unwanted()
        return events

    def forget(self, peer: PeerId, remote: str, reason: str, shared: bool, now: float) -> None:
        """Fail `peer`'s writes to `remote`; drop the remote once they have ended, unless it is `shared` with a peer."""
        for flight in self._flights.values():
            if flight.peer == peer and flight.remote == remote:
                flight.failure = reason
                flight.deadline_s = min(flight.deadline_s, now + _FORGET_LIMIT_S)
        if not shared and remote in self._remotes:
            self._unwanted.add(remote)

    def is_stuck(self, now: float) -> bool:
        """True when some write has outlived its limit, or a peer could not be loaded that long ago."""
        return self._blind_s <= now or any(flight.deadline_s <= now for flight in self._flights.values())

    def is_settled(self, now: float) -> bool:
        """True when every write that is left has outlived its limit."""
        return all(flight.deadline_s <= now for flight in self._flights.values())

    def destroy(self) -> list[TransportEvent]:
        """End the agent; returns the failure of every write that was unfinished. Their sources are free."""
        flights, self._flights = self._flights, {}
        for flight in flights.values():
            self._agent.release(flight.handle)
            flight.handle = None
        self._agent.destroy()
        return [_failed(write_id, flight) for write_id, flight in flights.items()]

    def _busy(self) -> set[str]:
        return {flight.remote for flight in self._flights.values()}

    def _remove_unwanted(self) -> None:
        if self._unwanted:
            busy = self._busy()
            for name in self._unwanted - busy:
                self._agent.remove_remote(name)
                self._remotes.pop(name, None)
                self._broken.discard(name)
            self._unwanted &= busy


def _failed(write_id: int, flight: _Flight) -> WriteFailed:
    return WriteFailed(write_id, f"peer {flight.peer!r}: {flight.failure or 'no completion within the time limit'}")
