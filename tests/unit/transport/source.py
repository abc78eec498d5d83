"""The writing end of the contract tests: random bytes in registered memory, and its events sorted by write."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

import numpy as np

from pdkv_connector.transport.base import Memory, Transport, WriteDone, WriteFailed
from pdkv_connector.transport.registry import open_transport
from tests.unit.transport.landing import NUM_SLOTS, SLOT_BYTES
from tests.unit.transport.targets import Target

PATIENCE_S = 40.0


class Source:
    """A transport with `NUM_SLOTS` slots of random bytes."""

    def __init__(self, kind: str, transport: Transport | None = None) -> None:
        self.transport = transport or open_transport(kind)
        self.bytes = np.random.default_rng(7).integers(0, 256, SLOT_BYTES * NUM_SLOTS, np.uint8)
        self.transport.register(self.memory(0, self.bytes.nbytes))
        self.done: list[int] = []
        self.failed: dict[int, str] = {}

    def memory(self, offset: int, num_bytes: int) -> Memory:
        return Memory(self.bytes.ctypes.data + offset, num_bytes)

    def write(self, target: Target, label: str, offset: int, num_bytes: int, peer: str = "peer") -> int:
        """Write a range of this memory to the same range of the target's."""
        payload = f"{label} {offset} {num_bytes}".encode()
        return self.transport.write(peer, self.memory(offset, num_bytes), target.memory(offset, num_bytes), payload)

    def crc(self, offset: int, num_bytes: int) -> int:
        return zlib.crc32(self.bytes[offset : offset + num_bytes].tobytes())

    def poll(self) -> None:
        for event in self.transport.poll():
            if isinstance(event, WriteDone):
                self.done.append(event.write_id)
            elif isinstance(event, WriteFailed):
                self.failed[event.write_id] = event.reason

    def pump(self, until: Callable[[], bool], *targets: Target) -> None:
        """Poll both ends until `until()`; fails when that never comes."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < give_up_s, f"done {self.done}, failed {self.failed}"
            self.poll()
            for target in targets:
                target.poll()
