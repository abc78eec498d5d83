"""NIXL writes between two processes of one machine: GB/s, latency, and the CPU an idle transport costs.

    python -m benchmarks.bench_transport [--tls unset tcp tcp,sm,self] [--sizes 65536 8388608] [--seconds 2]

Rate: `WINDOW` writes outstanding, bytes over the time from the first post to the last completion. Latency: one write at
a time, from the call to the moment the other process has read its notification (one clock, CLOCK_MONOTONIC). Both
processes poll without pause while they work. Results go to `benchmarks/results/transport.jsonl`, every sample kept.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from benchmarks.machine import REPOSITORY, describe
from pdkv_connector.transport.base import Memory, Notified, WriteDone, WriteFailed
from pdkv_connector.transport.registry import open_transport

SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20)
TLS = ("unset", "tcp", "tcp,sm,self")
WINDOW = 4
BUFFER_BYTES = WINDOW * SIZES[-1]
NUM_PINGS = 200
IDLE_POLL_S = 0.001


class End:
    """A transport with one buffer, every page of it touched."""

    def __init__(self) -> None:
        self.transport = open_transport("nixl")
        self.buffer = np.full(BUFFER_BYTES, 1, np.uint8)
        self.memory = Memory(self.buffer.ctypes.data, self.buffer.nbytes)
        self.transport.register(self.memory)


class Writer(End):
    """Writes to a receiver process and reads its answers."""

    def __init__(self) -> None:
        super().__init__()
        command = [sys.executable, "-m", "benchmarks.bench_transport", "--receive"]
        self.receiver = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        offer = self._answer()
        self._address: int = offer["address"]
        self.transport.connect("receiver", bytes.fromhex(offer["metadata"]))

    def close(self) -> None:
        self.receiver.kill()
        self.receiver.wait(timeout=10)
        self.transport.close()

    def rate(self, num_bytes: int, seconds: float) -> float:
        """GB/s with `WINDOW` writes outstanding."""
        outstanding = sent = 0
        started = time.monotonic()
        while outstanding or time.monotonic() - started < seconds:
            while outstanding < WINDOW and time.monotonic() - started < seconds:
                self._write(sent % WINDOW, num_bytes)
                outstanding, sent = outstanding + 1, sent + 1
            outstanding -= self._num_done()
        return sent * num_bytes / (time.monotonic() - started) / 1e9

    def latencies(self, num_bytes: int) -> list[float]:
        """Microseconds from call to notification, of `NUM_PINGS` single writes."""
        for _ in range(NUM_PINGS):
            self._write(0, num_bytes, wants_answer=True)
            while not self._num_done():
                pass
            time.sleep(0.0005)
        return [self._answer()["latency_s"] * 1e6 for _ in range(NUM_PINGS)]

    def idle_cores(self, seconds: float) -> float:
        """CPU seconds per second of a transport that is polled every `IDLE_POLL_S`."""
        cpu, started = time.process_time(), time.monotonic()
        while time.monotonic() - started < seconds:
            self.transport.poll()
            time.sleep(IDLE_POLL_S)
        return (time.process_time() - cpu) / (time.monotonic() - started)

    def _write(self, slot: int, num_bytes: int, wants_answer: bool = False) -> None:
        offset = slot * SIZES[-1]
        payload = struct.pack("!?d", wants_answer, time.monotonic())
        source, target = (Memory(base + offset, num_bytes) for base in (self.memory.address, self._address))
        self.transport.write("receiver", source, target, payload)

    def _num_done(self) -> int:
        events = self.transport.poll()
        failed = next((event for event in events if isinstance(event, WriteFailed)), None)
        if failed is not None:
            raise SystemExit(f"write failed: {failed.reason}")
        return sum(isinstance(event, WriteDone) for event in events)

    def _answer(self) -> Any:
        assert self.receiver.stdout is not None
        return json.loads(self.receiver.stdout.readline())


def receive() -> None:
    """Poll without pause and answer the notifications that ask for it, until killed."""
    end = End()
    print(json.dumps({"metadata": end.transport.metadata().hex(), "address": end.memory.address}), flush=True)
    parent = os.getppid()
    while os.getppid() == parent:
        for event in end.transport.poll():
            now = time.monotonic()
            assert isinstance(event, Notified)
            wants_answer, posted = struct.unpack("!?d", event.payload)
            if wants_answer:
                print(json.dumps({"latency_s": now - posted}), flush=True)


def measure(tls: str, sizes: list[int], seconds: float, repeats: int) -> list[dict[str, Any]]:
    """All figures under one value of UCX_TLS, which both processes inherit."""
    os.environ.pop("UCX_TLS", None)
    if tls != "unset":
        os.environ["UCX_TLS"] = tls
    writer = Writer()
    try:
        writer.rate(SIZES[-1], 0.5)
        rows = []
        for num_bytes in sizes:
            rates = [writer.rate(num_bytes, seconds) for _ in range(repeats)]
            pings = writer.latencies(num_bytes)
            rows.append({"tls": tls, "num_bytes": num_bytes, "rates_gb_s": rates, "latencies_us": pings})
        idle = writer.idle_cores(seconds)
        return [{**row, "idle_cores": idle} for row in rows]
    finally:
        writer.close()


def table(rows: list[dict[str, Any]]) -> str:
    """Medians as Markdown."""
    lines = ["| UCX_TLS | KiB | GB/s | Range | p50 us | p99 us | Idle cores |", "| --- " + "| ---: " * 6 + "|"]
    for row in rows:
        rates, pings = row["rates_gb_s"], row["latencies_us"]
        cells = [
            row["tls"],
            f"{row['num_bytes'] >> 10}",
            f"{median(rates):.2f}",
            f"{min(rates):.2f} to {max(rates):.2f}",
        ]
        cells += [f"{median(pings):.0f}", f"{quantiles(pings, n=100)[-1]:.0f}", f"{row['idle_cores']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, append one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tls", nargs="+", default=list(TLS), help="values of UCX_TLS; 'unset' leaves it to UCX")
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="bytes a write, at most 8 MiB")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "benchmarks/results/transport.jsonl")
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.receive:
        receive()
        return
    load = os.getloadavg()
    rows = [row for tls in args.tls for row in measure(tls, args.sizes, args.seconds, args.repeats)]
    print(table(rows))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a") as file:
        line = {"bench": "transport", "machine": describe(), "load": load, "window": WINDOW, "rows": rows}
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
