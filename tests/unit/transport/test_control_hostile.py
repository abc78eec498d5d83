"""The control port in a hostile world: garbage costs its sender, never the listener."""

from __future__ import annotations

import logging
import pickle
import socket
import struct
import time
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from pdkv_connector.errors import TransportError
from pdkv_connector.session.messages import MAX_FRAME_BYTES, PROTOCOL_VERSION, Closed, encode
from pdkv_connector.transport.control import ControlPlane

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00NULL".ljust(54, b"\x00")


@pytest.fixture
def server() -> Iterator[ControlPlane]:
    plane = ControlPlane("server", "127.0.0.1", 0)
    yield plane
    plane.close()


def assert_serves_the_next_good_peer(server: ControlPlane, instance: str = "good") -> None:
    client = ControlPlane(instance, "127.0.0.1", 0)
    try:
        assert client.send(client.dial(server.endpoint), Closed("t", 1))
        give_up_s = time.monotonic() + 30
        heard: list[str] = []
        while instance not in heard:
            assert time.monotonic() < give_up_s, "the listener no longer answers"
            server.wait(0.2)
            heard += [received.instance for received in server.receive()]
    finally:
        client.close()


def send_frames(endpoint: str, identity: bytes, frames: list[list[bytes]]) -> None:
    """Send `frames` from a plain ZMQ socket that shares no code with the product."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.IDENTITY, identity)
        dealer.setsockopt(zmq.LINGER, 5_000)
        dealer.connect(f"tcp://{endpoint}")
        for parts in frames:
            dealer.send_multipart(parts)


def frame(version: object, instance: object, message: object) -> bytes:
    return msgspec.msgpack.encode([version, instance, message])


HOSTILE = {
    "empty": [b""],
    "garbage": [b"\xc1\xff\x00garbage"],
    "old tuple": [msgspec.msgpack.encode(["get_meta_msg", 3])],
    "pickle": [pickle.dumps(("rank", 99))],
    "unknown message": [frame(PROTOCOL_VERSION, "evil", ["no_such_message", "t", 1])],
    "unknown rank": [frame(PROTOCOL_VERSION, "evil", ["closed", "t", -1])],
    "other version": [frame(99, "evil", ["closed", "t", 1])],
    "1 GB length": [b"\xc6\x40\x00\x00\x00"],
    "too many parts": [encode("evil", Closed("t", 1))] * 3,
    "another's name": [encode("good", Closed("t", 1))],
}


@pytest.mark.parametrize("parts", HOSTILE.values(), ids=HOSTILE)
def test_case_c28_hostile_frames_are_counted_and_dropped(
    server: ControlPlane, parts: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        send_frames(server.endpoint, b"evil#1", [parts] * 20)
        assert_serves_the_next_good_peer(server)
        while server.rejected_frames < 20:
            server.wait(0.2)
            assert server.receive() == []
    assert server.rejected_frames == 20
    assert [record.message.startswith("control frame rejected") for record in caplog.records] == [True]


def test_case_c28_a_sound_frame_is_not_rejected(server: ControlPlane) -> None:
    """Negative control: the same plain socket, saying something sound."""
    send_frames(server.endpoint, b"good#1", [[encode("good", Closed("t", 1))]])
    server.wait(30)
    assert [received.message for received in server.receive()] == [Closed("t", 1)]
    assert server.rejected_frames == 0


RAW = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(4096),
    "half a greeting": GREETING[:20],
    "1 GB length after a greeting": GREETING + b"\x06" + struct.pack(">Q", 1 << 30) + b"x" * 100,
    "nothing": b"",
}


@pytest.mark.parametrize("data", RAW.values(), ids=RAW)
def test_case_c28_raw_bytes_on_the_port(server: ControlPlane, data: bytes) -> None:
    host, _, port = server.endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(data)
        server.wait(0.1)
        assert server.receive() == []
        assert_serves_the_next_good_peer(server)


READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"


def shake_hands(server: ControlPlane) -> socket.socket:
    """A raw connection that ZMQ on the other side takes for a DEALER."""
    host, _, port = server.endpoint.rpartition(":")
    raw = socket.create_connection((host, int(port)), timeout=30)
    raw.sendall(GREETING + READY[:1] + bytes([len(READY) - 2]) + READY[2:])
    while b"READY" not in raw.recv(4096):
        continue
    return raw


def test_case_c28_a_length_beyond_the_bound_ends_the_connection_before_a_byte_of_it_came(server: ControlPlane) -> None:
    for num_bytes in (MAX_FRAME_BYTES + 1025, 1 << 30, (1 << 63) - 1):
        with shake_hands(server) as raw:
            raw.sendall(b"\x02" + struct.pack(">Q", num_bytes))
            while raw.recv(4096):
                continue
    assert_serves_the_next_good_peer(server)


def test_case_c28_a_frame_of_the_largest_size_is_read_and_judged(server: ControlPlane) -> None:
    """Negative control: the bound cuts off nothing that may be sent."""
    with shake_hands(server) as raw:
        raw.sendall(b"\x02" + struct.pack(">Q", MAX_FRAME_BYTES) + bytes(MAX_FRAME_BYTES))
        give_up_s = time.monotonic() + 30
        while not server.rejected_frames:
            assert time.monotonic() < give_up_s
            server.wait(0.1)
            assert server.receive() == []
    assert server.rejected_frames == 1


def test_case_c28_an_oversized_frame_ends_its_connection_only(server: ControlPlane) -> None:
    send_frames(server.endpoint, b"evil#1", [[bytes(32 << 20)]])
    assert_serves_the_next_good_peer(server)
    assert server.rejected_frames == 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_case_c20_an_address_of_another_machine_is_named(host: str) -> None:
    with pytest.raises(TransportError, match=f"cannot listen on {host}:5600"):
        ControlPlane("server", host, 5600)


def test_case_c20_an_occupied_port_is_named_and_free_again_later(server: ControlPlane) -> None:
    port = int(server.endpoint.rpartition(":")[2])
    with pytest.raises(TransportError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        ControlPlane("other", "127.0.0.1", port)
    server.close()
    ControlPlane("other", "127.0.0.1", port).close()
