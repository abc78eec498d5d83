"""Child process of `pdkv doctor`: `transport_probe ROLE NAME BACKEND PARAMS_JSON` moves bytes for real.

JSON lines. The receiver prints where its buffer is; the sender reads that line, writes the buffer in pieces and prints
how long it took; the receiver prints whether every byte arrived, and waits for the end of its input.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from pdkv_connector.transport.base import Memory, Notified, Transport, TransportEvent, WriteDone, WriteFailed
from pdkv_connector.transport.registry import open_transport

NUM_PIECES = 16
PIECE_BYTES = 4 * 2**20
TOTAL_BYTES = NUM_PIECES * PIECE_BYTES


def receive(transport: Transport, lines: TextIO) -> None:
    """Offer a buffer, wait for every piece's notification, compare every byte."""
    buffer = np.zeros(TOTAL_BYTES, np.uint8)
    memory = _register(transport, buffer)
    metadata = base64.b64encode(transport.metadata()).decode()
    _say(lines, metadata=metadata, address=memory.address)
    _poll_until(transport, NUM_PIECES, lambda event: isinstance(event, Notified))
    _say(lines, intact=bool((buffer == _pattern()).all()))


def send(transport: Transport, lines: TextIO) -> None:
    """Write the pattern, piece by piece, into the buffer named on standard input."""
    buffer = _pattern()
    source = _register(transport, buffer)
    offer = json.loads(sys.stdin.readline())
    transport.connect("receiver", base64.b64decode(offer["metadata"]))

    def write(piece: int) -> None:
        offset = piece * PIECE_BYTES
        mine, theirs = Memory(source.address + offset, PIECE_BYTES), Memory(offer["address"] + offset, PIECE_BYTES)
        transport.write("receiver", mine, theirs, b"piece")

    write(0)  # Makes the connection, which is not what is timed.
    _poll_until(transport, 1, _is_done)
    started = time.monotonic()
    for piece in range(1, NUM_PIECES):
        write(piece)
    _poll_until(transport, NUM_PIECES - 1, _is_done)
    _say(lines, bytes_per_s=TOTAL_BYTES * (1 - 1 / NUM_PIECES) / (time.monotonic() - started))


def _pattern() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(7).integers(0, 256, TOTAL_BYTES, np.uint8)


def _register(transport: Transport, buffer: np.ndarray[Any, np.dtype[np.uint8]]) -> Memory:
    memory = Memory(buffer.ctypes.data, buffer.nbytes)
    transport.register(memory)
    return memory


def _is_done(event: TransportEvent) -> bool:
    if isinstance(event, WriteFailed):
        sys.exit(f"write failed: {event.reason}")
    return isinstance(event, WriteDone)


def _poll_until(transport: Transport, count: int, wanted: Callable[[TransportEvent], bool]) -> None:
    """Poll for ever: the parent has the time limit."""
    while count > 0:
        count -= sum(wanted(event) for event in transport.poll())
        time.sleep(0.0002)


def _say(lines: TextIO, **fields: object) -> None:
    lines.write(json.dumps(fields) + "\n")
    lines.flush()


def main() -> None:
    """Keep standard output for the protocol, whatever native libraries print there."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    role, name, backend, params = sys.argv[1:]
    transport = open_transport(name, backend, json.loads(params))
    {"receive": receive, "send": send}[role](transport, lines)
    sys.stdin.read()
    os._exit(0)  # Native threads may outlive an orderly close; nothing is left to save.


if __name__ == "__main__":
    main()
