"""What every transport promises, on real bytes; `nixl` runs between two processes."""

from __future__ import annotations

import pytest

from pdkv_connector.errors import TransportError
from pdkv_connector.transport.base import Memory
from tests.unit.transport.conftest import OpenTarget
from tests.unit.transport.landing import NUM_SLOTS, SLOT_BYTES
from tests.unit.transport.source import Source

SIZES = (1, 2, 4095, 4097, 65_536, 1_000_003, SLOT_BYTES)


def test_every_size_lands_before_its_notification(source: Source, open_target: OpenTarget) -> None:
    target = open_target()
    source.transport.connect("peer", target.metadata)
    for number, num_bytes in enumerate(SIZES):
        write_id = source.write(target, f"w{number}", 0, num_bytes)
        source.pump(lambda number=number: len(target.seen) > number, target)  # type: ignore[misc]
        assert target.seen[number] == (f"w{number}", source.crc(0, num_bytes))
        source.bytes[:num_bytes] += 1
        source.pump(lambda write_id=write_id: write_id in source.done, target)  # type: ignore[misc]
        assert target.seen[number][1] != source.crc(0, num_bytes)
    assert not source.failed


def test_many_writes_outstanding_end_once_each(source: Source, open_target: OpenTarget) -> None:
    target = open_target()
    source.transport.connect("peer", target.metadata)
    num_bytes, num_writes = 256 << 10, NUM_SLOTS * SLOT_BYTES // (256 << 10)
    ids = [source.write(target, f"w{i}", i * num_bytes, num_bytes) for i in range(num_writes)]
    source.pump(lambda: len(target.seen) >= num_writes and len(source.done) >= num_writes, target)
    assert sorted(source.done) == ids
    assert sorted(target.seen) == sorted((f"w{i}", source.crc(i * num_bytes, num_bytes)) for i in range(num_writes))


def test_corruption_is_visible_to_these_tests(source: Source, open_target: OpenTarget) -> None:
    """Negative control: one byte of the source changed after its CRC was taken."""
    target = open_target()
    source.transport.connect("peer", target.metadata)
    crc = source.crc(0, SLOT_BYTES)
    source.bytes[SLOT_BYTES - 1] ^= 1
    source.write(target, "w", 0, SLOT_BYTES)
    source.pump(lambda: bool(target.seen), target)
    assert target.seen[0][1] != crc


def test_a_restarted_peer_replaces_the_old_one(source: Source, open_target: OpenTarget) -> None:
    old = open_target()
    source.transport.connect("peer", old.metadata)
    source.write(old, "before", 0, 4096)
    source.pump(lambda: bool(old.seen), old)
    old.die()
    new = open_target()
    source.transport.connect("peer", new.metadata)
    write_id = source.write(new, "after", 0, SLOT_BYTES)
    source.pump(lambda: bool(new.seen) and write_id in source.done, new)
    assert new.seen == [("after", source.crc(0, SLOT_BYTES))]
    assert len(old.seen) == 1


def test_writes_to_a_killed_peer_fail_and_leave_others_alone(source: Source, open_target: OpenTarget) -> None:
    doomed, healthy = open_target(), open_target()
    source.transport.connect("doomed", doomed.metadata)
    source.transport.connect("healthy", healthy.metadata)
    first = source.write(doomed, "w", 0, 4096, "doomed")
    source.pump(lambda: first in source.done, doomed)
    doomed.die()
    lost = [source.write(doomed, "w", i * SLOT_BYTES, SLOT_BYTES, "doomed") for i in range(4)]
    kept = source.write(healthy, "w", 0, SLOT_BYTES, "healthy")
    source.pump(lambda: len(source.failed) == len(lost) and kept in source.done, healthy)
    assert sorted(source.failed) == lost
    assert all("'doomed'" in reason for reason in source.failed.values())


def test_a_write_outside_registered_target_memory_fails_alone(source: Source, open_target: OpenTarget) -> None:
    target = open_target()
    source.transport.connect("peer", target.metadata)
    end = target.memory(NUM_SLOTS * SLOT_BYTES - 10, 0).address
    bad = source.transport.write("peer", source.memory(0, 11), Memory(end, 11), b"bad 0 1")
    good = source.write(target, "good", 0, 11)
    source.pump(lambda: bad in source.failed and good in source.done and bool(target.seen), target)
    assert target.seen == [("good", source.crc(0, 11))]


def test_misuse_is_refused_at_the_call(source: Source, open_target: OpenTarget) -> None:
    target = open_target()
    with pytest.raises(TransportError, match="'nobody' is not connected"):
        source.write(target, "w", 0, 1, "nobody")
    source.transport.connect("peer", target.metadata)
    outside = Memory(source.bytes.ctypes.data + source.bytes.nbytes, 1)
    with pytest.raises(TransportError, match="not inside registered memory"):
        source.transport.write("peer", outside, target.memory(0, 1), b"")
    with pytest.raises(TransportError, match="source has 2 bytes, target 1"):
        source.transport.write("peer", source.memory(0, 2), target.memory(0, 1), b"")
    with pytest.raises(TransportError, match="cannot register"):
        source.transport.register(Memory(0, 0))


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"garbage"])
def test_bad_metadata_is_refused_and_good_metadata_still_works(
    source: Source, open_target: OpenTarget, damage: bytes
) -> None:
    target = open_target()
    with pytest.raises(TransportError, match="peer 'peer'"):
        source.transport.connect("peer", damage or target.metadata[:-1])
    source.transport.connect("peer", target.metadata)
    write_id = source.write(target, "w", 0, 1)
    source.pump(lambda: write_id in source.done, target)


def test_disconnect_and_close_end_quietly(source: Source, open_target: OpenTarget) -> None:
    target = open_target()
    source.transport.connect("peer", target.metadata)
    source.transport.disconnect("peer")
    source.transport.disconnect("peer")
    with pytest.raises(TransportError, match="not connected"):
        source.write(target, "w", 0, 1)
    source.transport.close()
    source.transport.close()
    assert source.transport.poll() == []
