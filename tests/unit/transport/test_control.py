"""The control channel between real sockets of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pdkv_connector.errors import ProtocolError, TransportError
from pdkv_connector.session.messages import Closed, Heartbeat
from pdkv_connector.transport.control import ControlPlane, Received
from pdkv_connector.transport.sockets import QUEUE_MESSAGES

Open = Callable[..., ControlPlane]


@pytest.fixture
def open_plane() -> Iterator[Open]:
    opened: list[ControlPlane] = []

    def open_one(instance: str, host: str = "127.0.0.1", port: int = 0) -> ControlPlane:
        opened.append(ControlPlane(instance, host, port))
        return opened[-1]

    yield open_one
    for plane in opened:
        plane.close()


def collect(plane: ControlPlane, count: int) -> list[Received]:
    """Wait for `count` messages; fails when they never come."""
    messages: list[Received] = []
    give_up_s = time.monotonic() + 30
    while len(messages) < count:
        assert time.monotonic() < give_up_s, f"{len(messages)} of {count} messages came"
        plane.wait(0.5)
        messages += plane.receive()
    return messages


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_message_and_its_answer(open_plane: Open, host: str) -> None:
    server, client = open_plane("server", host), open_plane("client")
    peer = client.dial(server.endpoint)
    assert client.dial(server.endpoint) == peer
    assert client.send(peer, Closed("t", 3))
    (asked,) = collect(server, 1)
    assert (asked.instance, asked.message) == ("client", Closed("t", 3))
    assert server.send(asked.peer, Closed("t", 3))
    assert collect(client, 1) == [Received(peer, "server", Closed("t", 3))]


def test_messages_of_one_peer_keep_their_order(open_plane: Open) -> None:
    server, client = open_plane("server"), open_plane("client")
    peer = client.dial(server.endpoint)
    sent = [Closed("t", epoch) for epoch in range(3_000)]
    heard: list[Received] = []
    for message in sent:
        while not client.send(peer, message):
            heard += server.receive()
    heard += collect(server, len(sent) - len(heard))
    assert [received.message for received in heard] == sent


def test_a_message_to_nobody_is_false_and_bounded(open_plane: Open) -> None:
    plane = open_plane("plane")
    assert not plane.send("to:nobody:1", Closed("t", 0))
    assert not plane.send("from:nobody#1", Closed("t", 0))
    unreachable = plane.dial("127.0.0.1:9")
    accepted = [plane.send(unreachable, Closed("t", 0)) for _ in range(QUEUE_MESSAGES + 100)]
    assert accepted == [True] * QUEUE_MESSAGES + [False] * 100


def test_a_peer_that_died_is_false_and_its_successor_is_heard(open_plane: Open) -> None:
    first, client = open_plane("p0-a"), open_plane("client")
    peer = client.dial(first.endpoint)
    client.send(peer, Closed("t", 1))
    (asked,) = collect(first, 1)
    port = int(first.endpoint.rpartition(":")[2])
    first.close()
    second = open_plane("p0-b", port=port)
    assert not second.send(asked.peer, Closed("t", 1))
    while not client.send(peer, Closed("t", 2)):
        client.wait(0.01)
    (asked,) = collect(second, 1)
    assert asked.message == Closed("t", 2)
    second.send(asked.peer, Closed("t", 2))
    assert collect(client, 1) == [Received(peer, "p0-b", Closed("t", 2))]


def test_hang_up_forgets_and_dial_connects_anew(open_plane: Open) -> None:
    server, client = open_plane("server"), open_plane("client")
    peer = client.dial(server.endpoint)
    client.hang_up(peer)
    client.hang_up(peer)
    assert not client.send(peer, Closed("t", 0))
    assert client.dial(server.endpoint) == peer
    assert client.send(peer, Closed("t", 1))
    assert collect(server, 1)[0].message == Closed("t", 1)


def test_two_spellings_of_one_endpoint_are_both_served(open_plane: Open) -> None:
    server, client = open_plane("server"), open_plane("client")
    port = server.endpoint.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost"):
        client.send(client.dial(f"{host}:{port}"), Closed(host, 0))
    asked = collect(server, 2)
    assert all(server.send(received.peer, Closed("t", 0)) for received in asked)
    assert len({received.peer for received in collect(client, 2)}) == 2


def test_wake_ends_a_wait_from_another_thread(open_plane: Open) -> None:
    plane = open_plane("plane")
    waiter = threading.Thread(target=plane.wait, args=(60.0,))
    waiter.start()
    plane.wake()
    plane.wake()
    waiter.join(timeout=30)
    assert not waiter.is_alive()
    plane.close()
    plane.wake()


@pytest.mark.parametrize(
    "endpoint", ["", "host", "host:", ":80", "host:0", "host:65536", "a b:1", "[::1]", "tcp://h:1"]
)
def test_malformed_endpoints_are_refused(open_plane: Open, endpoint: str) -> None:
    with pytest.raises(TransportError, match="malformed endpoint"):
        open_plane("plane").dial(endpoint)


def test_oversized_messages_are_refused_at_the_sender(open_plane: Open) -> None:
    plane = open_plane("plane")
    with pytest.raises(ProtocolError, match="exceeds the bound"):
        plane.send(plane.dial("127.0.0.1:9"), Heartbeat((("t" * 256, 0),) * 8192))
