"""Bit planes and prefixes: what coding and decoding a level of a cascade stream share."""

from __future__ import annotations

import triton
import triton.language as tl

from pdkv_kernels.segments import ROW

CODED, STORED, CONSTANT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
UNIT_BYTES = tl.constexpr(8)
LEVEL_ROWS = tl.constexpr(128)
"""Rows of the levels past the first at a time: 1,024 codes, about what KV has at level 1."""
UNITS = tl.constexpr(512)
"""Units of a stream at a time."""
CHECK_FACTOR = tl.constexpr(0x9E3779B1)
LENGTH_UNIT, CHECK_UNIT = tl.constexpr(2), tl.constexpr(3)
"""Units of the header: the length is the upper half of one, the check the lower half of the next."""


# tl.sum and its like are functions of Triton's library: interpreted only where Triton itself was imported so.
@triton.jit
def total(values: tl.tensor, AXIS: tl.constexpr) -> tl.tensor:
    """Sum along an axis."""
    return tl.reduce(values, AXIS, tl.standard._sum_combine)


@triton.jit
def running_total(values: tl.tensor, AXIS: tl.constexpr) -> tl.tensor:
    """Sum along an axis of each value and those before it."""
    return tl.associative_scan(values, AXIS, tl.standard._sum_combine)


@triton.jit
def least_of(values: tl.tensor) -> tl.tensor:
    """The least of a tile."""
    return tl.reduce(tl.reduce(values, 1, tl.standard._elementwise_min), 0, tl.standard._elementwise_min)


@triton.jit
def most_of(values: tl.tensor) -> tl.tensor:
    """The most of a vector."""
    return tl.reduce(values, 0, tl.standard._elementwise_max)


@triton.jit
def ceil_div(value: tl.tensor, by: tl.tensor) -> tl.tensor:
    """Quotient, rounded up."""
    return (value + by - 1) // by


@triton.jit
def join_bits(code: tl.tensor) -> tl.tensor:
    """Codes of up to 4 bits, uint32 `[rows, ROW]`, to `[rows]`: byte `j` holds bits `j`, the first element's lowest."""
    column = tl.arange(0, ROW).to(tl.uint32)[None, :]
    return total(((code * 0x00204081) & 0x01010101) << column, 1)


@triton.jit
def split_bits(joined: tl.tensor) -> tl.tensor:
    """The inverse: `[rows]` to codes `[rows, ROW]`."""
    column = tl.arange(0, ROW).to(tl.uint32)[None, :]
    return (((joined[:, None] >> column) & 0x01010101) * 0x10204080) >> 28


@triton.jit
def store_planes(
    planes: tl.tensor, plane_bytes: tl.tensor, row: tl.tensor, joined: tl.tensor, COUNT: tl.constexpr
) -> None:
    """Write byte `row` of `COUNT` planes, `plane_bytes` apart."""
    for j in tl.static_range(COUNT):
        tl.store(planes + j * plane_bytes + row, ((joined >> (8 * j)) & 255).to(tl.uint8), mask=row < plane_bytes)


@triton.jit
def load_planes(planes: tl.tensor, plane_bytes: tl.tensor, row: tl.tensor, COUNT: tl.constexpr) -> tl.tensor:
    """The inverse, with zeros for rows past the planes."""
    joined = (row * 0).to(tl.uint32)
    for j in tl.static_range(COUNT):
        byte = tl.load(planes + j * plane_bytes + row, mask=row < plane_bytes, other=0)
        joined |= byte.to(tl.uint32) << (8 * j)
    return joined


@triton.jit
def passed_of(joined: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """Which elements of each row pass to the next level, their code being all ones: a byte a row."""
    both = joined & (joined >> 8)
    return (both & (both >> 16) if WIDTH == 4 else both) & 255


@triton.jit
def first_bits(count: tl.tensor) -> tl.tensor:
    """A byte with its `count` lowest bits set: none if there are less than one, all if there are more than eight."""
    return ((1 << tl.minimum(tl.maximum(count, 0), 8)) - 1).to(tl.uint32)


@triton.jit
def num_set(byte: tl.tensor) -> tl.tensor:
    """Number of bits set in each byte, int32."""
    pairs = byte - ((byte >> 1) & 0x55)
    fours = (pairs & 0x33) + ((pairs >> 2) & 0x33)
    return ((fours + (fours >> 4)) & 15).to(tl.int32)


@triton.jit
def bits_before(passed: tl.tensor) -> tl.tensor:
    """Where the bytes of a row's elements set in `passed` lie when moved together at the low end; and which are set."""
    ones = (passed[:, None] >> tl.arange(0, ROW).to(tl.uint32)[None, :]) & 1
    return (running_total(ones, 1) - ones) * 8, ones != 0


@triton.jit
def padded(num_bytes: tl.tensor) -> tl.tensor:
    """The next multiple of a unit."""
    return ceil_div(num_bytes, UNIT_BYTES) * UNIT_BYTES


@triton.jit
def check_of(units: tl.tensor, index: tl.tensor) -> tl.tensor:
    """What each of uint64 `units` adds to a stream's check, uint32; index: their places in the stream."""
    factor = (index.to(tl.uint32) * 4 + 1) * CHECK_FACTOR
    return units.to(tl.uint32) * factor + (units >> 32).to(tl.uint32) * (factor + CHECK_FACTOR + CHECK_FACTOR)


@triton.jit
def as_units(pointer: tl.tensor) -> tl.tensor:
    """A pointer to bytes as one to uint64 units."""
    return pointer.to(tl.pointer_type(tl.uint64), bitcast=True)
