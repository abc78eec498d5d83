"""A target for writes: memory, a transport, and a look at the data at the very moment its notification is read.

Run as a program it serves the `nixl` transport in its own process: it prints a hello, then one line per notification,
and ends when its standard input does.
"""

from __future__ import annotations

import json
import select
import sys
import time
import zlib
from pathlib import Path

import numpy as np

from pdkv_connector.transport.base import Memory, Notified, Transport
from pdkv_connector.transport.registry import open_transport

SLOT_BYTES = 8 << 20
NUM_SLOTS = 8


class Landing:
    """Memory backed by `file`, so that a test can look into another process's."""

    def __init__(self, transport: Transport, file: Path) -> None:
        self.transport = transport
        self.bytes = np.memmap(file, np.uint8, "r+", shape=(SLOT_BYTES * NUM_SLOTS,))
        self.memory = Memory(self.bytes.ctypes.data, self.bytes.nbytes)
        transport.register(self.memory)

    def poll(self) -> list[tuple[str, int]]:
        """Notifications read now, each with the CRC of the range it names, as the memory is now."""
        seen = []
        for event in self.transport.poll():
            assert isinstance(event, Notified)
            label, offset, num_bytes = event.payload.decode().split()
            seen.append((label, zlib.crc32(self.bytes[int(offset) : int(offset) + int(num_bytes)].tobytes())))
        return seen


def main() -> None:
    """Serve until standard input ends."""
    landing = Landing(open_transport("nixl"), Path(sys.argv[1]))
    print(json.dumps([landing.transport.metadata().hex(), landing.memory.address]), flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        seen = landing.poll()
        for one in seen:
            print(json.dumps(one), flush=True)
        if not seen:
            time.sleep(0.0002)
    landing.transport.close()


if __name__ == "__main__":
    main()
