"""What the cascade kernels share: segments in paged KV, and the tile that holds one block of them.

Segments of equal geometry form a **group**, which one launch handles. What is the same in every slab is known when a
kernel is compiled (`Paging`, `Coding`); what differs comes in one int64 tensor, the **plan**, so that a kernel compiles
once and a captured launch can be given other slabs: `FIELDS` numbers, then `PLANE_FIELDS` numbers for each plane, then
block tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from pdkv_kernels.paged import axis_offset, paged_offset

BLOCK_ELEMENTS = tl.constexpr(4096)
ROW = tl.constexpr(8)
"""A block is a tile of rows of this many elements: the bits of a plane that make one byte."""
ROWS = tl.constexpr(512)
CODEBOOK_BYTES = tl.constexpr(16)
CANDIDATES = tl.constexpr(32)
"""Deltas from -16 to 15 may have codes."""
LOOKUPS = tl.constexpr(4)
"""Numbers a segment to find codes with."""
FIRST_TOKEN, NUM_TOKENS, NUM_HEADS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
NUM_SEGMENTS, NUM_BLOCKS = tl.constexpr(3), tl.constexpr(4)
"""Of the group; the fields below are of its section."""
DIRECTORY_AT, TABLES_AT = tl.constexpr(5), tl.constexpr(6)
"""Bytes from the start of the stream."""
FIRST_BLOCK, FIRST_SEGMENT = tl.constexpr(7), tl.constexpr(8)
"""Blocks and segments of the stream before the section's."""
FIELDS = tl.constexpr(10)
PLANE_FIELDS = tl.constexpr(3)
"""Element offset of the first head, where the block table begins in the plan, segments of the section before."""


class Paged(NamedTuple):
    """KV in memory: a 1-D integer tensor, offsets count from its first element; strides are in elements."""

    memory: Any
    block_stride: int
    head_stride: int


class Paging(NamedTuple):
    """Where tokens and dims lie in a block; an axis is `(factor, outer stride, inner stride)` as in `PagedPlane`.

    align: divides the element offset of every plane.
    """

    block_size: int
    head_dim: int
    token: tuple[int, int, int]
    dim: tuple[int, int, int]
    align: int


class Coding(NamedTuple):
    """Bits of an element's exponent and mantissa, and of a code: 2 (four levels) or 4 (one level).

    per_channel: one base for each dim, else one for all. table_align: divides the place of every table in the stream.
    """

    exponent_bits: int
    mantissa_bits: int
    width: int
    per_channel: bool
    table_align: int


@triton.jit
def segment_of(kv: tl.tensor, plan: tl.tensor, index: tl.tensor, PAGING: tl.constexpr) -> tl.tensor:
    """Segment `index` of the group: element offset of plane and head, block table, number in the section."""
    num_heads = tl.load(plan + NUM_HEADS).to(tl.int32)
    plane = plan + FIELDS + PLANE_FIELDS * (index // num_heads)
    head = (index % num_heads).to(tl.int64)
    origin = tl.multiple_of(tl.load(plane), PAGING.align) + head * kv.head_stride
    return origin, plan + tl.load(plane + 1), tl.load(plane + 2) + head


@triton.jit
def tile_of(
    kv: tl.tensor,
    plan: tl.tensor,
    block_ids: tl.tensor,
    start: tl.tensor,
    num_elements: tl.tensor,
    PAGING: tl.constexpr,
) -> tl.tensor:
    """Element offset (from the segment's origin), dim and presence of the elements from `start` on, `[ROWS, ROW]`."""
    first_token = tl.load(plan + FIRST_TOKEN).to(tl.int32)
    first = (start + tl.arange(0, ROWS) * ROW).to(tl.uint32)  # division of unsigned numbers is cheaper
    if PAGING.head_dim % 8 == 0:  # a row lies in one token, and is there or not as a whole
        held = first < num_elements
        dim = (first % PAGING.head_dim)[:, None] + tl.arange(0, ROW)[None, :]
        place = tokens_at(kv, block_ids, first_token + first // PAGING.head_dim, held, PAGING)[:, None]
        held = tl.broadcast_to(held[:, None], (ROWS, ROW))
    else:
        index = first[:, None] + tl.arange(0, ROW)[None, :]
        held = index < num_elements
        dim = index % PAGING.head_dim
        place = tokens_at(kv, block_ids, first_token + index // PAGING.head_dim, held, PAGING)
    return place + axis_offset(dim, PAGING.dim[0], PAGING.dim[1], PAGING.dim[2]), dim, held


@triton.jit
def tokens_at(
    kv: tl.tensor, block_ids: tl.tensor, token: tl.tensor, held: tl.tensor, PAGING: tl.constexpr
) -> tl.tensor:
    """Element offset of each `token`, counted from the start of the first block; 64 bits wide."""
    axis: tl.constexpr = PAGING.token
    return paged_offset(token, held, block_ids, kv.block_stride, PAGING.block_size, axis[0], axis[1], axis[2])


@triton.jit
def bits_of(value: tl.tensor) -> tl.tensor:
    """Integers of 8, 16 or 32 bits as uint32, no sign carried up."""
    num_bits: tl.constexpr = value.dtype.primitive_bitwidth
    kind: tl.constexpr = tl.uint8 if num_bits == 8 else (tl.uint16 if num_bits == 16 else tl.uint32)
    return value.to(kind, bitcast=True).to(tl.uint32)


@triton.jit
def table_at(plan: tl.tensor, segment: tl.tensor, PAGING: tl.constexpr, CODING: tl.constexpr) -> tl.tensor:
    """Byte of the stream where the table of the section's `segment` begins."""
    num_channels: tl.constexpr = PAGING.head_dim if CODING.per_channel else 1
    at = tl.load(plan + TABLES_AT) + segment * (CODEBOOK_BYTES + num_channels)
    return tl.multiple_of(at, CODING.table_align)


@triton.jit
def bases_of(stream: tl.tensor, table: tl.tensor, dim: tl.tensor, CODING: tl.constexpr) -> tl.tensor:
    """The base of each `dim`'s channel, uint32."""
    bases = stream + (table + CODEBOOK_BYTES)
    return tl.load(bases + dim if CODING.per_channel else bases).to(tl.uint32)
