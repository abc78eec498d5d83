"""The control channel: typed messages between processes over ZMQ, non-blocking, one thread.

A process listens on one ROUTER and dials each remote endpoint with one DEALER. A dialer's identity is its instance and
a counter, `instance#n`, so two spellings of one address are two connections; a frame whose instance does not match the
identity it came under is rejected. Delivery is at most once: a message may be lost with a connection, or be held (up
to `QUEUE_MESSAGES`) and reach the process that takes the endpoint over. The session copes with both.

With keys (`control_keys`) both ends prove theirs before any message passes, and what passes is encrypted (CURVE).
"""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from dataclasses import dataclass

import zmq

from pdkv_connector.errors import ProtocolError, TransportError
from pdkv_connector.rare_log import RareLog
from pdkv_connector.session.messages import Message, decode, encode
from pdkv_connector.transport.control_dial import Dial
from pdkv_connector.transport.control_guard import Guard
from pdkv_connector.transport.control_keys import Keys
from pdkv_connector.transport.sockets import join_endpoint, open_router, split_endpoint
from pdkv_connector.transport.waker import Waker
from pdkv_connector.types import PeerId

logger = logging.getLogger(__name__)

_MAX_FRAMES_PER_RECEIVE = 1024
_MAX_SOCKETS = 4096
_INBOUND = "from:"
_OUTBOUND = "to:"


@dataclass(frozen=True, slots=True)
class Received:
    """One message, the connection to answer on, and the process instance that sent it."""

    peer: PeerId
    instance: str
    message: Message


class ControlPlane:
    """Listens on `host:port` (port 0: the OS chooses) and dials peers. All but `wake` belong to one thread.

    `instance` names this process uniquely and newly at every start, in at most 200 bytes of UTF-8.
    Raises TransportError within a second when the address cannot be bound.
    """

    def __init__(self, instance: str, host: str, port: int, keys: Keys = ()) -> None:
        if not 0 < len(instance.encode()) <= 200:
            raise TransportError(f"instance {instance[:64]!r} must be 1 to 200 bytes of UTF-8")
        self._instance = instance
        self._keys = keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self._poller = zmq.Poller()
        with ExitStack() as opened:
            opened.callback(self._context.term)
            self._guard = Guard(self._context, keys)
            opened.callback(self._guard.close)
            self._router, bound_port = open_router(self._context, host, port, keys[0] if keys else None)
            opened.pop_all()
        self._waker = Waker()
        for source in (self._router, self._waker.fileno(), *self._guard.watch(self._router)):
            self._poller.register(source, zmq.POLLIN)
        self._endpoint = join_endpoint(host, bound_port)
        self._dealers: dict[PeerId, Dial] = {}
        self._num_dials = 0
        self._rejections, self._failures = RareLog(logger), RareLog(logger)
        self._closed = False
        self.rejected_frames = 0

    @property
    def endpoint(self) -> str:
        """`host:port` as bound; the host is the one given, so a wildcard must be replaced before it is advertised."""
        return self._endpoint

    @property
    def refused_strangers(self) -> int:
        """Connections turned away because they proved no key, or one that is not ours. Any thread may ask."""
        return self._guard.refused

    def dial(self, endpoint: str) -> PeerId:
        """Connect to `endpoint` in the background; the same endpoint is the same peer. Raises TransportError."""
        peer = _OUTBOUND + join_endpoint(*split_endpoint(endpoint))
        if peer not in self._dealers:
            self._num_dials += 1
            identity = f"{self._instance}#{self._num_dials}".encode()
            where = peer.removeprefix(_OUTBOUND)
            self._dealers[peer] = Dial(self._context, self._poller, identity, where, self._keys, self._failures)
        return peer

    def send(self, peer: PeerId, message: Message) -> bool:
        """Queue `message`; False when `peer` is unknown, gone or its queue full.

        Raises ProtocolError when it is oversized and TransportError when `peer` has just refused to talk to this side.
        """
        frame = encode(self._instance, message)
        try:
            if peer.startswith(_INBOUND):
                self._router.send_multipart([peer.removeprefix(_INBOUND).encode(), frame], zmq.NOBLOCK)
            elif peer in self._dealers:
                self._dealers[peer].send(frame)
            else:
                return False
        except zmq.ZMQError:
            return False
        return True

    def receive(self) -> list[Received]:
        """Messages here now, at most 1,024; each malformed frame is counted in `rejected_frames` and dropped."""
        messages: list[Received] = []
        budget = _MAX_FRAMES_PER_RECEIVE
        self._guard.attend()
        sources = [(_INBOUND, self._router)]
        for peer, dial in self._dealers.items():
            dial.attend()
            sources.append((peer, dial.dealer))
        while sources and budget:
            for source in list(sources)[:budget]:
                parts = _read(source[1])
                if parts is None:
                    sources.remove(source)
                    continue
                budget -= 1
                received = self._admit(source[0], parts)
                if received is not None:
                    messages.append(received)
        return messages

    def wait(self, timeout_s: float) -> None:
        """Sleep until a message is here, `wake` is called, or `timeout_s`, in whole milliseconds upward, has passed."""
        ready = dict(self._poller.poll(max(0, math.ceil(timeout_s * 1000))))
        if self._waker.fileno() in ready:
            self._waker.drain()

    def wake(self) -> None:
        """End a present or the next `wait`. Thread-safe, cheap, coalescing."""
        self._waker.wake()

    def hang_up(self, peer: PeerId) -> None:
        """Close the connection dialed to `peer`, dropping what is queued. Unknown and inbound peers are ignored."""
        dial = self._dealers.pop(peer, None)
        if dial is not None:
            dial.close()

    def close(self) -> None:
        """Close every connection at once, dropping what is queued; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for peer in list(self._dealers):
            self.hang_up(peer)
        self._guard.close()
        self._router.close()
        self._waker.close()
        self._context.term()

    def _admit(self, source: PeerId, parts: list[bytes]) -> Received | None:
        try:
            return _parse(source, parts)
        except ProtocolError as error:
            self.rejected_frames += 1
            self._rejections.warning("control frame rejected (%d so far): %s", self.rejected_frames, error)
            return None


def _read(source: zmq.Socket[bytes]) -> list[bytes] | None:
    try:
        return source.recv_multipart(zmq.NOBLOCK)
    except zmq.ZMQError:
        return None


def _parse(source: PeerId, parts: list[bytes]) -> Received:
    """Turn the parts read from `source` into a message. Raises ProtocolError."""
    inbound = source == _INBOUND
    if len(parts) != 1 + inbound:
        raise ProtocolError(f"control message of {len(parts) - inbound} parts, expected 1")
    frame = decode(parts[-1])
    if not inbound:
        return Received(source, frame.instance, frame.message)
    instance, _, dial = parts[0].decode("utf-8", errors="replace").rpartition("#")
    if not dial or instance != frame.instance:
        raise ProtocolError(f"frame of instance {frame.instance[:64]!r} came under identity {parts[0][:64]!r}")
    return Received(f"{_INBOUND}{instance}#{dial}", frame.instance, frame.message)
