"""Transport over NIXL: UCX by default, any NIXL plugin by name.

Two agents a process: the receiver, whose metadata peers hold and which therefore lives as long as the transport, and a
writer, made at the first `connect` and replaced when a write gets stuck (see `nixl_writer`). A write to a killed peer
fails at once, one to a stopped or unreachable peer within twice `write_limit_s`.

After WriteFailed the source is free. The target may hold any part, and bytes already in the target's kernel still land
once that process runs again, so the target must let the slot rest before it grants it anew.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Mapping

import msgspec

from pdkv_connector.errors import TransportError
from pdkv_connector.transport.base import WRITE_LIMIT_S, Memory, Notified, TransportEvent, WriteFailed
from pdkv_connector.transport.nixl_agent import NixlAgent
from pdkv_connector.transport.nixl_writer import NixlWriter
from pdkv_connector.types import PeerId

_Remote = tuple[str, bytes]


class _Envelope(msgspec.Struct, frozen=True, array_like=True, tag="pdkv-nixl"):
    """Metadata on the wire. NIXL keeps half-loaded state when it is given damaged metadata: hence the CRC."""

    backend: str
    crc32: int
    agent: bytes


class NixlTransport:
    """`Transport` over NIXL backend `backend` with its init `params`; raises TransportError when it cannot start."""

    def __init__(
        self, backend: str = "UCX", params: Mapping[str, str] | None = None, write_limit_s: float = WRITE_LIMIT_S
    ) -> None:
        self._backend, self._params, self._write_limit_s = backend, dict(params or {}), write_limit_s
        self._receiver: NixlAgent | None = NixlAgent(backend, self._params)
        self._writer: NixlWriter | None = None
        self._retired: list[NixlWriter] = []
        self._memories: list[Memory] = []
        self._peers: dict[PeerId, _Remote] = {}
        self._failures: list[TransportEvent] = []
        self._write_ids = itertools.count(1)

    @property
    def name(self) -> str:
        return "nixl"

    def register(self, memory: Memory) -> None:
        if memory.kind not in ("DRAM", "VRAM") or memory.address <= 0 or memory.num_bytes <= 0:
            raise TransportError(f"cannot register {memory}: kind must be DRAM or VRAM, address and num_bytes positive")
        self._open_receiver().register(memory)
        if self._writer is not None:
            self._writer.register(memory)
        self._memories.append(memory)

    def metadata(self) -> bytes:
        agent = self._open_receiver().metadata()
        return msgspec.msgpack.encode(_Envelope(self._backend, zlib.crc32(agent), agent))

    def connect(self, peer: PeerId, metadata: bytes) -> None:
        self._open_receiver()
        agent = _open_envelope(peer, metadata, self._backend)
        old = self._peers.get(peer)
        if old is None or old[1] != agent:
            self._peers[peer] = ("", agent)
            if old is not None:
                self._forget(peer, old[0], "it has been replaced by a new instance")
        self._reach(peer)

    def write(self, peer: PeerId, source: Memory, target: Memory, notification: bytes) -> int:
        if peer not in self._peers:
            raise TransportError(f"peer {peer!r} is not connected: call connect() before write()")
        if source.num_bytes != target.num_bytes or source.num_bytes <= 0:
            raise TransportError(
                f"source has {source.num_bytes} bytes, target {target.num_bytes}: both must be equal and positive"
            )
        if not any(registered.contains(source) for registered in self._memories):
            raise TransportError(f"source {source} is not inside registered memory: call register() first")
        write_id, now = next(self._write_ids), time.monotonic()
        try:
            self._open_writer().start(write_id, peer, self._reach(peer), source, target, notification, now)
        except TransportError as error:
            self._failures.append(WriteFailed(write_id, f"peer {peer!r}: {error}"))
        return write_id

    def poll(self) -> list[TransportEvent]:
        events, self._failures = self._failures, []
        if self._receiver is None:
            return events
        events += self._poll_writers(time.monotonic())
        events += [Notified(payload) for payload in self._receiver.notifications()]
        return events

    def disconnect(self, peer: PeerId) -> None:
        known = self._peers.pop(peer, None)
        if known is not None:
            self._forget(peer, known[0], "it has been disconnected")

    def close(self) -> None:
        for writer in self._writers():
            writer.destroy()
        if self._receiver is not None:
            self._receiver.destroy()
        self._receiver = self._writer = None
        self._retired, self._failures = [], []
        self._peers.clear()
        self._memories.clear()

    def _poll_writers(self, now: float) -> list[TransportEvent]:
        events = [event for writer in self._writers() for event in writer.poll()]
        if self._writer is not None and self._writer.is_stuck(now):
            self._retired.append(self._writer)
            self._writer = None
        for writer in [writer for writer in self._retired if writer.is_settled(now)]:
            self._retired.remove(writer)
            events += writer.destroy()
        return events

    def _writers(self) -> list[NixlWriter]:
        return self._retired if self._writer is None else [*self._retired, self._writer]

    def _open_receiver(self) -> NixlAgent:
        if self._receiver is None:
            raise TransportError("this NIXL transport is closed: open a new one")
        return self._receiver

    def _open_writer(self) -> NixlWriter:
        """The present writer, or a new one that knows every memory and peer of this transport."""
        if self._writer is None:
            self._writer = NixlWriter(self._backend, self._params, self._memories, self._write_limit_s)
            for name, agent in self._peers.values():
                if name:
                    self._writer.expect(name, agent)
        return self._writer

    def _reach(self, peer: PeerId) -> str:
        """Name of the peer's agent. Raises TransportError while it cannot be reached; each write tries again."""
        name, agent = self._peers[peer]
        if not name:
            name = self._open_writer().load(agent, time.monotonic())
            self._peers[peer] = (name, agent)
        return name

    def _forget(self, peer: PeerId, remote: str, reason: str) -> None:
        now, shared = time.monotonic(), any(name == remote for name, _ in self._peers.values())
        for writer in self._writers():
            writer.forget(peer, remote, reason, shared, now)


def _open_envelope(peer: PeerId, metadata: bytes, backend: str) -> bytes:
    try:
        envelope = msgspec.msgpack.decode(metadata, type=_Envelope)
    except msgspec.MsgspecError as error:
        raise TransportError(f"peer {peer!r} sent {len(metadata)} bytes that are no NIXL metadata: {error}") from error
    if envelope.backend != backend:
        raise TransportError(
            f"peer {peer!r} uses NIXL backend {envelope.backend!r}, this side {backend!r}: configure the same one"
        )
    if zlib.crc32(envelope.agent) != envelope.crc32:
        raise TransportError(f"peer {peer!r} sent damaged NIXL metadata: CRC of {len(envelope.agent)} bytes differs")
    return envelope.agent
