"""Keys on real sockets: who has the key is heard, who has not is counted and hears nothing."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from pdkv_connector.errors import TransportError
from pdkv_connector.session.messages import Closed, encode
from pdkv_connector.transport.control import ControlPlane, Received
from pdkv_connector.transport.control_keys import KeyPair, Keys, create_key, load_keys

PATIENCE_S = 30.0
NULL_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00NULL".ljust(54, b"\x00")
CURVE_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00CURVE".ljust(54, b"\x00")
Open = Callable[..., ControlPlane]


def new_pair() -> KeyPair:
    return KeyPair(*zmq.curve_keypair())


OLD, NEW, OTHER = new_pair(), new_pair(), new_pair()


@pytest.fixture
def open_plane() -> Iterator[Open]:
    opened: list[ControlPlane] = []

    def open_one(instance: str, keys: Keys = (), port: int = 0) -> ControlPlane:
        opened.append(ControlPlane(instance, "127.0.0.1", port, keys))
        return opened[-1]

    yield open_one
    for plane in opened:
        plane.close()


class Talk:
    """A client that goes on asking, as the session does, and everything that the two sides hear meanwhile."""

    def __init__(self, server: ControlPlane, client: ControlPlane) -> None:
        self.server, self.client = server, client
        self.heard: list[Received] = []
        self.answers: list[Received] = []
        self.errors: list[str] = []
        self.peer = client.dial(server.endpoint)

    def step(self) -> None:
        try:
            self.client.send(self.peer, Closed("t", 1))
        except TransportError as error:
            self.errors.append(str(error))
        for _ in range(4):
            self.server.wait(0.02)
            for received in self.server.receive():
                self.heard.append(received)
                self.server.send(received.peer, Closed("t", 2))
            self.answers += self.client.receive()

    def until(self, done: Callable[[], object], what: str) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < give_up_s, f"no {what}: {self.server.refused_strangers} {self.errors}"
            self.step()


def assert_serves(server: ControlPlane, client: ControlPlane) -> None:
    """Two that belong together still talk."""
    talk = Talk(server, client)
    talk.until(lambda: talk.heard and talk.answers, "answer")
    assert not talk.errors


def test_a_key_from_a_folder_opens_both_ways(open_plane: Open, tmp_path: Path) -> None:
    create_key(tmp_path)
    server, client = (open_plane(name, load_keys(str(tmp_path))) for name in ("server", "client"))
    assert_serves(server, client)
    assert server.refused_strangers == client.refused_strangers == 0


def test_what_passes_is_encrypted(open_plane: Open) -> None:
    """Read what a client with keys says, through a relay that listens in; without keys it can be read."""
    secret = "a very private transfer"
    for keys, readable in ((), True), ((OLD,), False):
        server, client = open_plane("server", keys), open_plane("client", keys)
        with Relay(server.endpoint) as relay:
            client.send(client.dial(relay.endpoint), Closed(secret, 1))
            give_up_s = time.monotonic() + PATIENCE_S
            while not (heard := server.receive()):
                assert time.monotonic() < give_up_s
                relay.pass_on()
                server.wait(0.001)
                client.receive()
            assert heard[0].message == Closed(secret, 1)
            assert (secret.encode() in relay.seen) is readable


class Relay:
    """Passes one connection's bytes on, both ways, and keeps them."""

    def __init__(self, target: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self._target = target
        self._ends: list[socket.socket] = []
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen = b""

    def __enter__(self) -> Relay:
        return self

    def pass_on(self) -> None:
        if not self._ends:
            host, _, port = self._target.rpartition(":")
            self._ends = [self._listener.accept()[0], socket.create_connection((host, int(port)))]
            for end in self._ends:
                end.setblocking(False)
        for source, target in zip(self._ends, reversed(self._ends), strict=True):
            try:
                data = source.recv(1 << 16)
            except BlockingIOError:
                continue
            self.seen += data
            target.sendall(data)

    def __exit__(self, *_: object) -> None:
        for end in (*self._ends, self._listener):
            end.close()


STRANGERS: dict[str, tuple[Keys, str]] = {
    "no key": ((), "demands a key: set keys_dir"),
    "another key": ((OTHER,), ""),
}


@pytest.mark.parametrize(("keys", "told"), STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_refused_and_counted_and_others_are_served(
    open_plane: Open, keys: Keys, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = open_plane("server", (OLD,))
    talk = Talk(server, open_plane("stranger", keys))
    with caplog.at_level(logging.WARNING):
        talk.until(lambda: server.refused_strangers >= 2 and bool(talk.errors) == bool(told), "second refusal")
    assert talk.heard == talk.answers == []
    assert all(told in error for error in talk.errors)
    warnings = [record.getMessage() for record in caplog.records if "refused (" in record.getMessage()]
    assert len(warnings) == 1, "one in some seconds, however often it happens"
    assert_serves(server, open_plane("member", (OLD,)))
    assert talk.heard == []


def test_a_client_that_knows_the_listeners_key_and_has_not_its_own_is_refused(open_plane: Open) -> None:
    """The public key of the listener is not enough: ZMQ alone would let this one in."""
    server = open_plane("server", (OLD,))
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.IDENTITY, b"evil#1")
        dealer.setsockopt(zmq.CURVE_SERVERKEY, OLD.public)
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, OTHER.public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, OTHER.secret)
        dealer.connect(f"tcp://{server.endpoint}")
        dealer.send(encode("evil", Closed("t", 1)))
        attend_until(server, lambda: server.refused_strangers > 0)
        assert_serves(server, open_plane("member", (OLD,)))
        assert server.refused_strangers == 1


def test_a_client_with_keys_tells_a_listener_without_nothing(open_plane: Open) -> None:
    server = open_plane("server")
    talk = Talk(server, open_plane("client", (OLD,)))
    talk.until(lambda: talk.errors, "error")
    assert talk.heard == []
    assert "it uses no keys, this side does" in talk.errors[0]
    assert_serves(server, open_plane("plain"))


def test_a_listener_that_is_put_right_is_reached_again(open_plane: Open) -> None:
    """ZMQ leaves a DEALER that was refused once alone for ever."""
    server, client = open_plane("server-a"), open_plane("client", (OLD,))
    port = int(server.endpoint.rpartition(":")[2])
    talk = Talk(server, client)
    talk.until(lambda: talk.errors, "error")
    server.close()
    talk.server = open_plane("server-b", (OLD,), port)
    talk.until(lambda: talk.answers, "answer of the listener with keys")


@pytest.mark.parametrize("keys", [(), (OLD,)], ids=["no keys", "keys"])
def test_a_port_that_belonged_to_something_else_is_reached_again(open_plane: Open, keys: Keys) -> None:
    client = open_plane("client", keys)
    with socket.create_server(("127.0.0.1", 0)) as web:
        port = web.getsockname()[1]
        peer = client.dial(f"127.0.0.1:{port}")
        web.settimeout(PATIENCE_S)
        with web.accept()[0] as asked:
            asked.settimeout(PATIENCE_S)
            asked.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            if keys:  # ZMQ hangs up, and for good
                read_to_end(asked)
    talk = Talk(open_plane("server", keys, port), client)
    assert talk.peer == peer
    talk.until(lambda: talk.answers, "answer of the listener")


KEYRINGS: dict[str, tuple[Keys, Keys]] = {
    "server ahead": ((OLD, NEW), (OLD,)),
    "client ahead": ((OLD,), (OLD, NEW)),
    "server swapped": ((NEW, OLD), (OLD, NEW)),
    "client swapped": ((OLD, NEW), (NEW, OLD)),
    "server done": ((NEW,), (NEW, OLD)),
    "client done": ((NEW, OLD), (NEW,)),
}


@pytest.mark.parametrize(("server_keys", "client_keys"), KEYRINGS.values(), ids=KEYRINGS)
def test_while_keys_are_changed_every_pair_of_neighbouring_steps_talks(
    open_plane: Open, server_keys: Keys, client_keys: Keys
) -> None:
    server, client = open_plane("server", server_keys), open_plane("client", client_keys)
    talk = Talk(server, client)
    talk.until(lambda: talk.answers, "answer")
    assert not talk.errors


def test_a_dropped_key_opens_nothing(open_plane: Open) -> None:
    """Negative control of the above: two steps apart, nobody talks."""
    server = open_plane("server", (NEW,))
    talk = Talk(server, open_plane("late", (OLD,)))
    talk.until(lambda: server.refused_strangers, "refusal")
    assert talk.heard == []


def attend_until(server: ControlPlane, done: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < give_up_s
        server.wait(0.05)
        assert server.receive() == []


def read_to_end(connection: socket.socket) -> None:
    """Until the other side ends it, in whatever way."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(4096):
            continue


def connect(server: ControlPlane) -> socket.socket:
    host, _, port = server.endpoint.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def test_the_warning_names_the_strangers_address(open_plane: Open, caplog: pytest.LogCaptureFixture) -> None:
    server = open_plane("server", (OLD,))
    with connect(server) as raw, caplog.at_level(logging.WARNING):
        server.wait(PATIENCE_S)
        server.receive()
        raw.sendall(NULL_GREETING)
        attend_until(server, lambda: server.refused_strangers > 0)
    (record,) = caplog.records
    assert record.getMessage() == ("control connection from 127.0.0.1 refused (1 so far): only one side uses keys")


RAW = {
    "half a greeting": CURVE_GREETING[:30],
    "no hello": CURVE_GREETING,
    "a hello of noise": CURVE_GREETING + b"\x04\xc8\x05HELLO" + bytes(range(194)),
    "a command of a gigabyte": CURVE_GREETING + b"\x06" + (1 << 30).to_bytes(8, "big") + bytes(64),
    "http": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("data", RAW.values(), ids=RAW)
def test_raw_bytes_on_a_port_with_keys_hold_up_nobody(open_plane: Open, data: bytes) -> None:
    server = open_plane("server", (OLD,))
    with connect(server) as raw:
        raw.sendall(data)
        assert_serves(server, open_plane("member", (OLD,)))


def test_a_hundred_strangers_leave_a_listener_that_serves(open_plane: Open) -> None:
    server, member = open_plane("server", (OLD,)), open_plane("member", (OLD,))
    for _ in range(100):
        with connect(server) as raw:
            raw.sendall(NULL_GREETING)
            read_to_end(raw)
    attend_until(server, lambda: server.refused_strangers == 100)
    assert_serves(server, member)
    assert len(server._guard._addresses) == 1, "only the member's is kept"
