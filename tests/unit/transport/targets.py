"""Targets of the contract tests: in this process (loopback) or in a process of its own (nixl)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Protocol

import numpy as np

from pdkv_connector.transport.base import Memory
from pdkv_connector.transport.loopback import LoopbackTransport
from tests.unit.transport.landing import NUM_SLOTS, SLOT_BYTES, Landing

ROOT = Path(__file__).parents[3]


class Target(Protocol):
    """Something to write into. `seen` grows by `(label, crc)` per notification."""

    seen: list[tuple[str, int]]
    metadata: bytes

    def memory(self, offset: int, num_bytes: int) -> Memory: ...
    def poll(self) -> None: ...
    def die(self) -> None: ...


class LocalTarget:
    def __init__(self, folder: Path) -> None:
        self._landing = Landing(LoopbackTransport(), make_file(folder))
        self.metadata = self._landing.transport.metadata()
        self.seen: list[tuple[str, int]] = []

    def memory(self, offset: int, num_bytes: int) -> Memory:
        return Memory(self._landing.memory.address + offset, num_bytes)

    def poll(self) -> None:
        self.seen += self._landing.poll()

    def die(self) -> None:
        self._landing.transport.close()


class ProcessTarget:
    def __init__(self, folder: Path) -> None:
        file = make_file(folder)
        self.bytes = np.memmap(file, np.uint8, "r")
        self.seen: list[tuple[str, int]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.transport.landing", str(file)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        metadata, self._address = json.loads(self._process.stdout.readline())
        self.metadata = bytes.fromhex(metadata)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def memory(self, offset: int, num_bytes: int) -> Memory:
        return Memory(self._address + offset, num_bytes)

    def poll(self) -> None:
        time.sleep(0.0002)

    def die(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.seen.append(tuple(json.loads(line)))


def make_file(folder: Path) -> Path:
    """A fresh file of zeros, the size of a target's memory."""
    file = folder / f"memory-{time.monotonic_ns()}"
    with file.open("wb") as opened:
        opened.truncate(SLOT_BYTES * NUM_SLOTS)
    return file
