"""The relay itself: what it is told to do to a connection is what happens to it. No engine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.rig.relay import Relay, tag

PATIENCE_S = 0.5


def _echo(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _serve(connection: socket.socket) -> None:
    with connection:
        try:
            while data := connection.recv(4096):
                connection.sendall(data)
        except OSError:
            return


@pytest.fixture
def relay() -> Iterator[Relay]:
    """A relay in front of a server that says what it hears."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_echo, args=(listener,), daemon=True).start()
        relay = Relay(f"127.0.0.1:{listener.getsockname()[1]}")
        yield relay
        relay.close()


def dial(relay: Relay) -> socket.socket:
    host, _, port = relay.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=5)
    connection.settimeout(PATIENCE_S)
    return connection


def test_passes(relay: Relay) -> None:
    with dial(relay) as connection:
        connection.sendall(b"word")
        assert connection.recv(99) == b"word"


def test_holds_and_passes_on_later(relay: Relay) -> None:
    with dial(relay) as connection:
        connection.sendall(b"a")
        assert connection.recv(99) == b"a"
        relay.hold()
        connection.sendall(b"b")
        with pytest.raises(TimeoutError):
            connection.recv(99)
        relay.restore()
        assert connection.recv(99) == b"b"


def test_holds_from_a_message_on(relay: Relay) -> None:
    with dial(relay) as connection:
        relay.hold_from("register")
        connection.sendall(tag("hello"))
        assert connection.recv(99) == tag("hello")
        connection.sendall(tag("register"))
        relay.wait_for("register", 5)
        with pytest.raises(TimeoutError):
            connection.recv(99)


def ended(connection: socket.socket) -> bool:
    """The other end closed it, in whichever way."""
    try:
        return connection.recv(99) == b""
    except ConnectionError:
        return True


def test_cuts_and_listens_again(relay: Relay) -> None:
    with dial(relay) as connection:
        connection.sendall(b"a")
        assert connection.recv(99) == b"a"
        relay.cut()
        assert ended(connection)
    with pytest.raises(ConnectionError):
        dial(relay)
    relay.restore()
    with dial(relay) as connection:
        connection.sendall(b"d")
        assert connection.recv(99) == b"d"


def test_slow(relay: Relay) -> None:
    with dial(relay) as connection:
        relay.slow(2 * PATIENCE_S)
        connection.sendall(b"a")
        with pytest.raises(TimeoutError):
            connection.recv(99)
        time.sleep(4 * PATIENCE_S)
        assert connection.recv(99) == b"a"
