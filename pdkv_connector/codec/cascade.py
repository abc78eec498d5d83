"""Cascade streams: a slab in wire order to a shorter one, and back, bit for bit; specified in kernels/README.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdkv_connector.codec import cascade_loops as loops
from pdkv_connector.codec.cascade_decode import BAD_KIND, BAD_LENGTH, BAD_PARTS
from pdkv_connector.codec.cascade_format import (
    CHECK_OFFSET,
    UNIT_BYTES,
    Frame,
    Section,
    check_head,
    merge,
)
from pdkv_connector.codec.cascade_workspace import Workspace, workspace
from pdkv_connector.codec.host_view import UINTS
from pdkv_connector.errors import ProtocolError, SlabTooLarge

Bytes = NDArray[np.uint8]
FAULTS = {
    BAD_KIND: "a block of unknown kind",
    BAD_LENGTH: "a block whose length cannot be",
    BAD_PARTS: "a block whose parts do not add up to its length",
}


class _Job(NamedTuple):
    """Consecutive segments of one section: their elements, directory entries and tables."""

    section: Section
    elements: NDArray[Any]
    directory: NDArray[np.uint16]
    tables: Bytes

    @property
    def arguments(self) -> tuple[Any, ...]:
        section = self.section
        shape = (section.num_tokens, section.num_dims, section.num_channels)
        return self.elements, shape, (section.numbers.mantissa_bits, (1 << section.numbers.exponent_bits) - 1)


class Cascade:
    """Codes of `width` bits: 2, four levels, or 4, one level. One caller at a time; it may use `num_threads`."""

    def __init__(self, width: int, num_threads: int = 1) -> None:
        self._width = width
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads, "pdkv-codec") if num_threads > 1 else None
        self._workspaces: dict[tuple[int, int, int], Workspace] = {}

    def encode(self, raw: Bytes, sections: Sequence[Section], out: Bytes) -> int:
        """Write the payload of `raw` into `out`; returns its length: less than `raw`'s, or equal, and then it is `raw`.

        Raises SlabTooLarge when that is more than `out` holds.
        """
        frame = Frame(self._width, merge(sections))
        num_bytes = self._code(raw, frame, out[: max(0, raw.size - 1)])
        if num_bytes:
            return num_bytes
        if out.size < raw.size:
            raise SlabTooLarge(f"slab of {raw.size} bytes does not fit {out.size} bytes, coded or not")
        out[: raw.size] = raw
        return raw.size

    def _code(self, raw: Bytes, frame: Frame, out: Bytes) -> int:
        """Length of the stream in `out`, or 0 when it does not fit."""
        if out.size < frame.blocks_at:
            return 0
        out[: frame.blocks_at] = 0
        jobs = list(self._jobs(raw, out, frame))
        encode = self._encode_alone if self._pool is None else self._encode_together
        end = encode(jobs, out, frame.blocks_at)
        if end < 0:
            return 0
        head = frame.head(end)
        out[: len(head)] = np.frombuffer(head, np.uint8)
        out[CHECK_OFFSET : CHECK_OFFSET + 4].view(np.uint32)[0] = loops.check_of(out[:end].view(np.uint32))
        return end

    def _encode_alone(self, jobs: Sequence[_Job], out: Bytes, at: int) -> int:
        for job in jobs:
            work = self._workspace(job.section, 0)
            at = loops.encode_segments(*job.arguments, self._width, job.directory, job.tables, out, at, work)
            if at < 0:
                return -1
        return at

    def _encode_together(self, jobs: Sequence[_Job], out: Bytes, at: int) -> int:
        """Each thread codes into memory of its own; the results are then put one behind another."""
        assert self._pool is not None

        def encode(index: int, job: _Job) -> Bytes | None:
            buffer = np.empty(job.elements.nbytes + UNIT_BYTES * job.directory.size, np.uint8)
            work = self._workspace(job.section, index)
            end = loops.encode_segments(*job.arguments, self._width, job.directory, job.tables, buffer, 0, work)
            return None if end < 0 else buffer[:end]

        for part in self._spread(encode, jobs):
            if part is None or at + part.size > out.size:
                return -1
            out[at : at + part.size] = part
            at += part.size
        return at

    def decode(self, payload: Bytes, sections: Sequence[Section], raw: Bytes) -> None:
        """Write the slab that `payload` stands for into `raw`, which has its length. Raises ProtocolError."""
        if payload.size == raw.size:
            raw[:] = payload
            return
        frame = Frame(self._width, merge(sections))
        check_head(payload[: frame.directory_at].tobytes(), payload.size, frame)
        _check(payload)
        jobs = list(self._jobs(raw, payload, frame))
        starts = [frame.blocks_at]
        for job in jobs:
            starts.append(loops.blocks_end(job.directory, starts[-1]))
        if starts[-1] != payload.size:
            raise ProtocolError(f"coded slab of {payload.size} bytes has blocks up to byte {starts[-1]}")

        def decode(index: int, job: _Job, at: int) -> tuple[int, int]:
            work = self._workspace(job.section, index)
            arguments = (self._width, job.directory, job.tables, payload, at, work)
            result: tuple[int, int] = loops.decode_segments(*job.arguments, *arguments)
            return result

        for at, fault in self._spread(decode, jobs, starts):
            if fault:
                raise ProtocolError(f"coded slab has {FAULTS[fault]} at byte {at}")

    def _spread(self, work: Any, jobs: Sequence[_Job], *more: Sequence[Any]) -> Iterable[Any]:
        """`work(index, job, ...)` of every job, in order of jobs; each index has a scratch of its own.

        Threads are waited for: a caller that gives up at the first fault gives its buffers back, too.
        """
        if self._pool is None:
            return (work(0, *arguments) for arguments in zip(jobs, *more, strict=False))
        return list(self._pool.map(work, range(len(jobs)), jobs, *more))

    def _jobs(self, raw: Bytes, stream: Bytes, frame: Frame) -> Iterator[_Job]:
        """The sections, cut into as many jobs as there are threads when there is one section to cut."""
        directory = stream[frame.directory_at : frame.directory_at + 2 * frame.num_blocks].view(np.uint16)
        raw_at, entry, table_at = 0, 0, frame.tables_at
        for section in frame.sections:
            for count in self._cut(section.num_segments):
                part = Section(section.numbers, count, section.num_tokens, section.num_dims)
                elements = raw[raw_at : raw_at + part.raw_bytes].view(UINTS[section.numbers.elem_bytes])
                tables = stream[table_at : table_at + part.table_bytes]
                yield _Job(part, elements, directory[entry : entry + part.num_blocks], tables)
                raw_at, entry, table_at = raw_at + part.raw_bytes, entry + part.num_blocks, table_at + part.table_bytes

    def _cut(self, num_segments: int) -> Iterator[int]:
        size = -(-num_segments // self._num_threads)
        for start in range(0, num_segments, size):
            yield min(size, num_segments - start)

    def _workspace(self, section: Section, index: int) -> Workspace:
        key = (section.numbers.elem_bytes, section.num_dims, index)
        if key not in self._workspaces:
            self._workspaces[key] = workspace(key[0], key[1])
        return self._workspaces[key]


def _check(payload: Bytes) -> None:
    words = np.ascontiguousarray(payload).view(np.uint32)
    found, written = int(loops.check_of(words)), int(words[loops.CHECK_WORD])
    if found != written:
        raise ProtocolError(f"coded slab of {payload.size} bytes has check {found:08x}, {written:08x} was written")
