"""Reads the event files that workers write where `timeline_path` is set, and sums up each transfer.

One JSON object a line: `t` (unix seconds), `side` (producer or consumer), `event`, `transfer_id`, and per event:

    producer   queued  chunk(tokens, t_start, t_stop)  posted(seq, layers, tokens, bytes, codec)  written(seq)
               codec(peer, codec, reason)  finished  delivered  closed
    consumer   registered  landed(seq, layers, tokens, bytes, codec)  scattered(seq)  complete  failed

Several producer ranks tell their slabs apart by a further field `rank`. Both sides must read the same clock: the files
are meant for engines on one machine, or with synchronised clocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdkv_connector.errors import PdkvError


@dataclass(frozen=True)
class Chunk:
    """One prefill step of one request: tokens `[start, stop)`, computed from `t_start` to `t_stop` (unix seconds)."""

    start: int
    stop: int
    t_start: float
    t_stop: float


@dataclass
class Slab:
    """One slab on its way; times are unix seconds, None where the event has not been seen."""

    seq: int
    num_bytes: int = 0
    posted: float | None = None
    written: float | None = None
    landed: float | None = None
    scattered: float | None = None


@dataclass
class Transfer:
    """Everything recorded of one transfer, from both sides."""

    transfer_id: str
    chunks: list[Chunk] = field(default_factory=list)
    slabs: dict[tuple[int, int], Slab] = field(default_factory=dict)  # by (rank, seq)
    milestones: dict[str, float] = field(default_factory=dict)

    @property
    def prefill_start(self) -> float:
        """When the first chunk began; raises PdkvError where no chunk was recorded."""
        return min(chunk.t_start for chunk in self._chunks())

    @property
    def prefill_stop(self) -> float:
        """When the last chunk ended; raises PdkvError where no chunk was recorded."""
        return max(chunk.t_stop for chunk in self._chunks())

    @property
    def prefill_s(self) -> float:
        return self.prefill_stop - self.prefill_start

    @property
    def moved_bytes(self) -> int:
        """Bytes that arrived at the consumer; a slab sent twice counts once."""
        return sum(slab.num_bytes for slab in self.slabs.values() if slab.landed is not None)

    @property
    def complete_at(self) -> float | None:
        """When the consumer had all of it in its KV blocks, None if that never came."""
        return self.milestones.get("complete")

    @property
    def exposed_s(self) -> float | None:
        """How long after the end of prefill the consumer still waited for KV."""
        return None if self.complete_at is None else max(0.0, self.complete_at - self.prefill_stop)

    @property
    def hidden_share(self) -> float | None:
        """Share of the bytes that had arrived when prefill ended, 0 to 1; None when nothing arrived."""
        if not self.moved_bytes:
            return None
        landed = (slab for slab in self.slabs.values() if slab.landed is not None)
        return sum(slab.num_bytes for slab in landed if (slab.landed or 0) <= self.prefill_stop) / self.moved_bytes

    def _chunks(self) -> list[Chunk]:
        if not self.chunks:
            raise PdkvError(
                f"transfer {self.transfer_id} has no prefill chunk in its timeline: is the producer's there?"
            )
        return self.chunks


def read(paths: Iterable[Path]) -> dict[str, Transfer]:
    """Transfers of all files by transfer id. A last line still being written is left out.

    Raises PdkvError, naming file and line, where a line is not a timeline event.
    """
    transfers: dict[str, Transfer] = {}
    for path in paths:
        lines = path.read_text().splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            if number == len(lines) and not line.endswith("\n"):
                break
            try:
                _take(transfers, json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise PdkvError(f"{path} line {number} is not a timeline event ({error!r}): {line[:80]!r}") from None
    return transfers


def _take(transfers: dict[str, Transfer], event: dict[str, Any]) -> None:
    name, transfer_id = event["event"], event["transfer_id"]
    transfer = transfers.setdefault(transfer_id, Transfer(transfer_id))
    if name == "chunk":
        start, stop = event["tokens"]
        transfer.chunks.append(Chunk(start, stop, event["t_start"], event["t_stop"]))
    elif name in ("posted", "written", "landed", "scattered"):
        slab = transfer.slabs.setdefault((event.get("rank", 0), event["seq"]), Slab(event["seq"]))
        slab.num_bytes = event.get("bytes", slab.num_bytes)
        if getattr(slab, name) is None:
            setattr(slab, name, event["t"])
    else:
        transfer.milestones.setdefault(name, event["t"])
