"""Slot memory."""

from __future__ import annotations

import pytest

from pdkv_connector.runtime.ring_buffer import ALIGN_BYTES, RingBuffer


@pytest.mark.parametrize("slot_bytes", [4096, 5000, 1 << 20])
def test_slots_lie_side_by_side_on_a_page(slot_bytes: int) -> None:
    ring = RingBuffer(3, slot_bytes, "cpu")
    assert ring.memory.address % ALIGN_BYTES == 0
    assert ring.memory.num_bytes == 3 * slot_bytes
    for slot in range(3):
        view = ring.view(slot, slot_bytes)
        assert view.nbytes == slot_bytes
        assert view.ctypes.data == ring.part(slot, slot_bytes).address == ring.memory.address + slot * slot_bytes


def test_slots_do_not_overlap() -> None:
    ring = RingBuffer(2, 4096, "cpu")
    ring.view(0, 4096)[:] = 1
    ring.view(1, 10)[:] = 2
    assert ring.view(0, 4096).min() == ring.view(0, 4096).max() == 1
    assert ring.view(1, 4096)[:10].tolist() == [2] * 10
    assert not ring.view(1, 4096)[10:].any()


def test_a_part_lies_inside_the_registered_memory() -> None:
    ring = RingBuffer(2, 4096, "cpu")
    assert ring.memory.contains(ring.part(1, 4096))
    assert not ring.memory.contains(ring.part(2, 1))
