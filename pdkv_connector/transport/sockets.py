"""ZMQ sockets of the control channel: options, addresses, binding.

Every option bounds something: memory (MAXMSGSIZE, HWM), a dead peer's time (heartbeats, keepalive, handshake), or a
close (LINGER). A DEALER queues up to its high-water mark while its peer is unreachable, so that a first message needs
no retry.
"""

from __future__ import annotations

import re
import socket
import threading

import zmq

from pdkv_connector.errors import TransportError
from pdkv_connector.session.messages import MAX_FRAME_BYTES
from pdkv_connector.transport.control_keys import KeyPair

QUEUE_MESSAGES = 256
"""Messages held per peer and direction; beyond it, sends are refused and reads push back on the peer's TCP."""

_ENDPOINT = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>\d{1,5})")
_RESOLVE_LIMIT_S = 0.8

_OPTIONS: dict[int, int] = {
    zmq.LINGER: 0,
    zmq.IPV6: 1,
    zmq.SNDHWM: QUEUE_MESSAGES,
    zmq.RCVHWM: QUEUE_MESSAGES,
    zmq.MAXMSGSIZE: MAX_FRAME_BYTES + 1024,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 10,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 10_000,
    zmq.HEARTBEAT_TTL: 10_000,
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 1_000,
}


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Split `host:port` or `[ipv6]:port`. Raises TransportError when malformed."""
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        raise TransportError(f"malformed endpoint {endpoint[:256]!r}: write it as host:port or [ipv6]:port")
    return match["ipv6"] or match["host"], int(match["port"])


def join_endpoint(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def open_dealer(context: zmq.Context[zmq.Socket[bytes]], identity: bytes, pair: KeyPair | None) -> zmq.Socket[bytes]:
    """A DEALER that is not connected yet; with `pair` both ends must have that key. Raises ZMQError."""
    dealer = _open(context, zmq.DEALER)
    dealer.setsockopt(zmq.IDENTITY, identity)
    if pair is not None:
        dealer.setsockopt(zmq.CURVE_SERVERKEY, pair.public)
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, pair.public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
    return dealer


def open_router(
    context: zmq.Context[zmq.Socket[bytes]], host: str, port: int, pair: KeyPair | None
) -> tuple[zmq.Socket[bytes], int]:
    """A ROUTER bound to `host` (port 0: the OS chooses) and its port. Raises TransportError within a second.

    With `pair` it takes only peers that know that key and that the context's ZAP handler, which must be there, admits.
    """
    router = _open(context, zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a peer that reconnects before its old connection is known dead
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an unreachable peer is an error, not a silent drop
    if pair is not None:
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
        router.setsockopt(zmq.ZAP_DOMAIN, b"pdkv")
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a handler, nobody comes in
    try:
        if not 0 <= port < 1 << 16:
            raise TransportError("port must be between 0 and 65535")
        router.bind(f"tcp://{join_endpoint(_resolve(host), port or '*')}")  # type: ignore[arg-type]
    except (zmq.ZMQError, TransportError) as error:
        router.close()
        raise TransportError(
            f"cannot listen on {join_endpoint(host, port)}: {error}; choose a free port and an address of this machine"
        ) from error
    return router, int(router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])


def _open(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    opened = context.socket(kind)
    for option, value in _OPTIONS.items():
        opened.setsockopt(option, value)
    return opened


def _resolve(host: str) -> str:
    """Numeric address of `host`. ZMQ binds to no names, and a resolver may stall for long: it gets a bounded time."""
    found: list[str] = []

    def look_up() -> None:
        try:
            found.append(str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4][0]))
        except OSError:
            return

    thread = threading.Thread(target=look_up, name="pdkv-resolve", daemon=True)
    thread.start()
    thread.join(_RESOLVE_LIMIT_S)
    if not found:
        raise TransportError(f"host {host!r} does not resolve")
    return found[0]
