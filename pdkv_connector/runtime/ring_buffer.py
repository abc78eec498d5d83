"""Slot memory of a ring, on the device where the KV is."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdkv_connector.codec.base import Buffer
from pdkv_connector.transport.base import Memory

ALIGN_BYTES = 4096


class RingBuffer:
    """`num_slots` slots of `slot_bytes` each, page aligned; `device` is `cpu` or a CUDA device such as `cuda:0`."""

    def __init__(self, num_slots: int, slot_bytes: int, device: str) -> None:
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        num_bytes = num_slots * slot_bytes
        if device == "cpu":
            raw = np.zeros(num_bytes + ALIGN_BYTES, np.uint8)
            skip = -raw.ctypes.data % ALIGN_BYTES
            self._bytes: Buffer = raw[skip : skip + num_bytes]
            self.memory = Memory(self._bytes.ctypes.data, num_bytes)
        else:
            self._bytes = _device_bytes(num_bytes, device)
            self.memory = Memory(self._bytes.data_ptr(), num_bytes, self._bytes.device.index or 0, "VRAM")

    def view(self, slot: int, num_bytes: int) -> Buffer:
        """The first `num_bytes` of a slot as a uint8 array."""
        start = slot * self.slot_bytes
        return self._bytes[start : start + num_bytes]

    def part(self, slot: int, num_bytes: int) -> Memory:
        """The same, as the transport names it."""
        start = self.memory.address + slot * self.slot_bytes
        return Memory(start, num_bytes, self.memory.device_id, self.memory.kind)


def _device_bytes(num_bytes: int, device: str) -> Any:
    import torch

    return torch.zeros(num_bytes, dtype=torch.uint8, device=device)
