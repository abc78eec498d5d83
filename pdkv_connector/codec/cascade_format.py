"""The fixed parts of a cascade stream: header, sections, sizes. kernels/README.md is the specification."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pdkv_connector.errors import LayoutError, ProtocolError

MAGIC = b"PDKV"
VERSION = 1
BLOCK_ELEMENTS = 4096
UNIT_BYTES = 8
"""Parts of a stream begin at multiples of this, and block lengths count in it."""
CODEBOOK_BYTES = 16
MAX_DIMS = 65535
SAMPLE_TOKENS = 256
"""Most tokens of a segment that its bases are taken from."""
COUNT_EVERY = 4
"""Every which of them is counted for the codebook."""
MIN_CHANNEL_TOKENS = 32
"""Segments of fewer tokens have one base for all dims: a base a dim would cost more than it saves."""
CODED, STORED, CONSTANT = 0, 1, 2
LEVELS = {2: 4, 4: 1}
"""Bits of a code -> number of levels."""
HEADER = struct.Struct("<4sBBBBIIIIII")
FIELDS = ("magic", "version", "width", "levels", "reserved byte", "block elements", "number of sections",
          "number of blocks", "length", "check", "reserved word")  # fmt: skip
SECTION = struct.Struct("<BBBBIIHH")
CHECK_OFFSET = 24


class Numbers(NamedTuple):
    """Bits of an element type: sign, then exponent, then mantissa."""

    elem_bytes: int
    exponent_bits: int
    mantissa_bits: int


DTYPES = {
    "bfloat16": Numbers(2, 8, 7),
    "float16": Numbers(2, 5, 10),
    "float32": Numbers(4, 8, 23),
    "float8_e4m3fn": Numbers(1, 4, 3),
    "float8_e5m2": Numbers(1, 5, 2),
    "uint8": Numbers(1, 4, 3),
    "int8": Numbers(1, 4, 3),
}
"""Bytes of unknown meaning are coded as e4m3: any choice is lossless, a wrong one saves less."""


@dataclass(frozen=True, slots=True)
class Section:
    """`num_segments` segments of `num_tokens` x `num_dims` elements, one after another; all of one type."""

    numbers: Numbers
    num_segments: int
    num_tokens: int
    num_dims: int

    def __post_init__(self) -> None:
        if self.num_dims > MAX_DIMS:
            raise LayoutError(f"head size {self.num_dims} has no coded form, at most {MAX_DIMS} has: set codec to raw")

    @property
    def num_elements(self) -> int:
        """Elements of one segment."""
        return self.num_tokens * self.num_dims

    @property
    def num_channels(self) -> int:
        """Bases in one segment's table."""
        return self.num_dims if self.num_tokens >= MIN_CHANNEL_TOKENS else 1

    @property
    def blocks_per_segment(self) -> int:
        """Blocks of one segment; only the last may be short."""
        return -(-self.num_elements // BLOCK_ELEMENTS)

    @property
    def num_blocks(self) -> int:
        """Blocks of the section."""
        return self.num_segments * self.blocks_per_segment

    @property
    def raw_bytes(self) -> int:
        """Bytes of the section in wire order."""
        return self.num_segments * self.num_elements * self.numbers.elem_bytes

    @property
    def table_bytes(self) -> int:
        """Bytes of all its tables."""
        return self.num_segments * (CODEBOOK_BYTES + self.num_channels)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the parts of a stream lie, known before a single element is coded."""

    width: int
    sections: tuple[Section, ...]

    @property
    def num_blocks(self) -> int:
        """Blocks of the stream."""
        return sum(section.num_blocks for section in self.sections)

    @property
    def raw_bytes(self) -> int:
        """Bytes of the slab in wire order."""
        return sum(section.raw_bytes for section in self.sections)

    @property
    def directory_at(self) -> int:
        """First byte of the directory."""
        return HEADER.size + SECTION.size * len(self.sections)

    @property
    def tables_at(self) -> int:
        """First byte of the tables."""
        return padded(self.directory_at + 2 * self.num_blocks)

    @property
    def blocks_at(self) -> int:
        """First byte of the first block."""
        return padded(self.tables_at + sum(section.table_bytes for section in self.sections))

    def head(self, num_bytes: int) -> bytes:
        """Header and sections of a stream of `num_bytes`, its check still zero."""
        levels = LEVELS[self.width]
        header = HEADER.pack(
            MAGIC, VERSION, self.width, levels, 0, BLOCK_ELEMENTS, len(self.sections), self.num_blocks, num_bytes, 0, 0
        )
        return header + b"".join(_pack_section(section) for section in self.sections)


def padded(num_bytes: int) -> int:
    """The next multiple of a unit."""
    return -(-num_bytes // UNIT_BYTES) * UNIT_BYTES


def _pack_section(section: Section) -> bytes:
    numbers = section.numbers
    return SECTION.pack(*numbers, 0, section.num_segments, section.num_tokens, section.num_dims, section.num_channels)


def merge(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Join neighbours of equal geometry; empty ones go."""
    merged: list[Section] = []
    for section in sections:
        if not section.num_segments * section.num_elements:
            continue
        last = merged[-1] if merged else None
        if last and (last.numbers, last.num_tokens, last.num_dims) == (
            section.numbers,
            section.num_tokens,
            section.num_dims,
        ):
            merged[-1] = Section(last.numbers, last.num_segments + section.num_segments, last.num_tokens, last.num_dims)
        else:
            merged.append(section)
    return tuple(merged)


def check_head(stream: bytes, num_bytes: int, frame: Frame) -> None:
    """Raise ProtocolError unless `stream` begins as a stream of `frame`, `num_bytes` long, must."""
    if num_bytes % UNIT_BYTES:
        raise ProtocolError(f"coded slab of {num_bytes} bytes is not a multiple of {UNIT_BYTES} bytes")
    if num_bytes < frame.blocks_at:
        raise ProtocolError(f"coded slab of {num_bytes} bytes is shorter than its own tables, {frame.blocks_at} bytes")
    expected = frame.head(num_bytes)
    for name, found, wanted in zip(FIELDS, HEADER.unpack_from(stream), HEADER.unpack_from(expected), strict=True):
        if found != wanted and name != "check":
            raise ProtocolError(f"coded slab has {name} {found!r} in its header, the slab agreed on has {wanted!r}")
    sections, agreed = stream[HEADER.size : len(expected)], expected[HEADER.size :]
    if sections != agreed:
        raise ProtocolError(f"coded slab has sections {sections.hex()}, the slab agreed on has {agreed.hex()}")
