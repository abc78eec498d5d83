"""What only the loopback transport has: faults on demand, and endpoints in two threads."""

from __future__ import annotations

import ctypes
import re
import sys
import threading

import pytest

from pdkv_connector.errors import TransportError
from pdkv_connector.transport.base import Memory, Notified, TransportEvent, WriteDone, WriteFailed
from pdkv_connector.transport.loopback import Fate, LoopbackTransport
from pdkv_connector.transport.registry import open_transport


class End:
    """An endpoint with a little memory of its own."""

    def __init__(self, transport: LoopbackTransport, fill: bytes) -> None:
        self.transport = transport
        self.buffer = ctypes.create_string_buffer(fill, len(fill))
        self.memory = Memory(ctypes.addressof(self.buffer), len(fill))
        transport.register(self.memory)


FAULTS = {b"lose": Fate.LOSE_NOTIFICATION, b"fail": Fate.FAIL, b"corrupt": Fate.CORRUPT}


@pytest.mark.parametrize(
    ("notification", "done", "notified", "landed"),
    [
        (b"fine", True, True, b"abcd"),
        (b"lose", True, False, b"abcd"),
        (b"fail", False, False, b"...."),
        (b"corrupt", True, True, bytes([ord("a") ^ 0xFF]) + b"bcd"),
    ],
)
def test_faults(notification: bytes, done: bool, notified: bool, landed: bytes) -> None:
    writer = End(LoopbackTransport(lambda payload: FAULTS.get(payload, Fate.DELIVER)), b"abcd")
    target = End(LoopbackTransport(), b"....")
    writer.transport.connect("peer", target.transport.metadata())
    write_id = writer.transport.write("peer", writer.memory, target.memory, notification)
    (event,) = writer.transport.poll()
    assert isinstance(event, WriteDone if done else WriteFailed)
    assert event.write_id == write_id
    assert target.transport.poll() == ([Notified(notification)] if notified else [])
    assert target.buffer.raw == landed


def test_two_threads_write_to_each_other() -> None:
    ends = {name: End(LoopbackTransport(), name.encode() * 8) for name in "ab"}
    num_writes = 2_000
    events: dict[str, list[TransportEvent]] = {"a": [], "b": []}

    def run(own: str, other: str) -> None:
        end, peer = ends[own], ends[other]
        end.transport.connect(other, peer.transport.metadata())
        half = [Memory(each.memory.address + (own == "b") * 4, 4) for each in (end, peer)]
        for number in range(num_writes):
            end.transport.write(other, half[0], half[1], b"%d" % number)
            events[own] += end.transport.poll()

    threads = [threading.Thread(target=run, args=pair) for pair in ("ab", "ba")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for own in "ab":
        events[own] += ends[own].transport.poll()
        assert sum(isinstance(event, WriteDone) for event in events[own]) == num_writes
        heard = [event.payload for event in events[own] if isinstance(event, Notified)]
        assert heard == [b"%d" % number for number in range(num_writes)]


def test_host_memory_only() -> None:
    with pytest.raises(TransportError, match="VRAM"):
        LoopbackTransport().register(Memory(4096, 1, kind="VRAM"))


def test_a_missing_nixl_is_named_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    monkeypatch.delitem(sys.modules, "nixl._api", raising=False)
    fix = re.escape("pip install 'pdkv-connector[nixl]'")
    with pytest.raises(TransportError, match=rf"transport 'nixl' needs the package nixl .*: run {fix}"):
        open_transport("nixl")


def test_unknown_transports_and_backends_are_named() -> None:
    with pytest.raises(TransportError, match=r"'carrier-pigeon': choose one of loopback, nixl"):
        open_transport("carrier-pigeon")
    with pytest.raises(TransportError, match="takes no backend"):
        open_transport("loopback", "UCX")
    pytest.importorskip("nixl")
    with pytest.raises(TransportError, match="NIXL backend 'NO_SUCH'"):
        open_transport("nixl", "NO_SUCH")
