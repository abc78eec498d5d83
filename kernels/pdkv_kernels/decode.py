"""Verify, decode and scatter: the blocks of a cascade stream to paged KV in any layout.

Nothing a stream says is believed before it is checked. Sizes come from the plan; a block is read only inside its own
bytes and those only inside the stream; counts are taken from the planes themselves. A faulty block is not written.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pdkv_kernels.planes import (
    CHECK_UNIT,
    CODED,
    CONSTANT,
    LEVEL_ROWS,
    STORED,
    UNIT_BYTES,
    UNITS,
    as_units,
    bits_before,
    ceil_div,
    check_of,
    first_bits,
    load_planes,
    num_set,
    padded,
    passed_of,
    running_total,
    split_bits,
    total,
)
from pdkv_kernels.segments import (
    BLOCK_ELEMENTS,
    DIRECTORY_AT,
    FIRST_BLOCK,
    NUM_BLOCKS,
    NUM_TOKENS,
    ROW,
    ROWS,
    Coding,
    Paged,
    Paging,
    bases_of,
    segment_of,
    table_at,
    tile_of,
)

OK, BAD_KIND, BAD_LENGTH, BAD_PARTS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
FAULTS = tl.constexpr(4)
"""`status[2]` becomes the least `block * FAULTS + fault`."""


def decode(
    num_programs: int,
    kv: Paged,
    plan: Any,
    stream: Any,
    num_units: int,
    head_units: int,
    starts: Any,
    scratch: Any,
    status: Any,
    paging: Paging,
    coding: Coding,
) -> None:
    """Decode a group's blocks of `stream`, uint8, `num_units` long; what lies outside its segments keeps its bits.

    starts: from `place`. scratch: uint8, `2 * 4096` a program. status: int64; `[1]` grows, modulo 2^32, by what the
    group's blocks and the first `head_units` units (0 for all groups but one) add to the check; `[2]` as `FAULTS` says.
    """
    arguments = (kv, plan, stream, num_units, head_units, starts, scratch, status)
    decode_kernel[(num_programs,)](*arguments, paging, coding)


@triton.jit(do_not_specialize=["num_units", "head_units"])
def decode_kernel(
    kv: tl.tensor,
    plan: tl.tensor,
    stream: tl.tensor,
    num_units: tl.tensor,
    head_units: tl.tensor,
    starts: tl.tensor,
    scratch: tl.tensor,
    status: tl.tensor,
    PAGING: tl.constexpr,
    CODING: tl.constexpr,
) -> None:
    """Programs share the group's blocks, and the head."""
    scratch += tl.program_id(0) * (2 * BLOCK_ELEMENTS)
    directory = (stream + tl.load(plan + DIRECTORY_AT)).to(tl.pointer_type(tl.uint16), bitcast=True)
    num_elements = tl.load(plan + NUM_TOKENS).to(tl.int32) * PAGING.head_dim
    num_blocks = ceil_div(num_elements, BLOCK_ELEMENTS)
    checks = _check_head(as_units(stream), head_units)
    for index in range(tl.program_id(0), tl.load(plan + NUM_BLOCKS).to(tl.int32), tl.num_programs(0)):
        start = index % num_blocks * BLOCK_ELEMENTS
        origin, block_ids, segment = segment_of(kv, plan, index // num_blocks, PAGING)
        block = segment * num_blocks + index % num_blocks
        entry = tl.load(directory + block).to(tl.int32)
        at = tl.load(starts + tl.load(plan + FIRST_BLOCK) + block)
        length = tl.where(at + (entry & 0x3FFF) <= num_units, entry & 0x3FFF, 0)
        checks += _check_units(as_units(stream), at, length)
        place, dim, held = tile_of(kv, plan, block_ids, start, num_elements, PAGING)
        table = table_at(plan, segment, PAGING, CODING)
        base = bases_of(stream, table, dim, CODING)
        count = tl.minimum(num_elements - start, BLOCK_ELEMENTS)
        source = stream + tl.multiple_of(at * UNIT_BYTES, 8)
        bits, fault = _decode_block(
            source, entry >> 14, length * UNIT_BYTES, count, base, stream + table, scratch, CODING
        )
        if fault == OK:
            tl.store(kv.memory + origin + place, _as_kind(bits, kv.memory.dtype.element_ty), mask=held)
        else:
            number = (tl.load(plan + FIRST_BLOCK) + block) * FAULTS + fault
            tl.atomic_min(status + 2, number, sem="relaxed")
        tl.debug_barrier()  # the scratch is read to its end before the next block fills it
    tl.atomic_add(status.to(tl.pointer_type(tl.uint32), bitcast=True) + 2, total(checks, 0), sem="relaxed")


@triton.jit
def _as_kind(bits: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """uint32 cut to an integer type."""
    return bits.to(kind, bitcast=True) if kind.primitive_bitwidth == 32 else bits.to(kind)


@triton.jit
def _check_units(stream: tl.tensor, start: tl.tensor, count: tl.tensor) -> tl.tensor:
    """What `count` units from `start` on add to the check, in parts."""
    checks = tl.full((UNITS,), 0, tl.uint32)
    for at in range(0, count, UNITS):
        index = at + tl.arange(0, UNITS)
        checks += check_of(tl.load(stream + start + index, mask=index < count, other=0), start + index)
    return checks


@triton.jit
def _check_head(stream: tl.tensor, head_units: tl.tensor) -> tl.tensor:
    """What the program's share of the head adds to the check, in parts; the check itself is left out."""
    checks = tl.full((UNITS,), 0, tl.uint32)
    for at in range(tl.program_id(0) * UNITS, head_units, tl.num_programs(0) * UNITS):
        index = at + tl.arange(0, UNITS)
        units = tl.load(stream + index, mask=index < head_units, other=0)
        checks += check_of(tl.where(index == CHECK_UNIT, (units >> 32) << 32, units), index)
    return checks


@triton.jit
def _decode_block(
    source: tl.tensor,
    kind: tl.tensor,
    num_bytes: tl.tensor,
    count: tl.tensor,
    base: tl.tensor,
    codebook: tl.tensor,
    scratch: tl.tensor,
    CODING: tl.constexpr,
) -> tl.tensor:
    """Bits of the `count` elements, uint32 `[ROWS, ROW]`, and the fault if there is one."""
    elem_bytes: tl.constexpr = (1 + CODING.exponent_bits + CODING.mantissa_bits) // 8
    unit: tl.constexpr = tl.uint8 if elem_bytes == 1 else (tl.uint16 if elem_bytes == 2 else tl.uint32)
    elements = source.to(tl.pointer_type(unit), bitcast=True)
    bits = tl.full((ROWS, ROW), 0, tl.uint32)
    if kind == CODED:
        bits, fault = _decode_coded(source, num_bytes, count, base, codebook, scratch, CODING)
    elif kind == STORED:
        raw_bytes = count * elem_bytes
        good = (num_bytes == padded(raw_bytes)) & _is_zero(source, raw_bytes, num_bytes)
        index = tl.arange(0, ROWS)[:, None] * ROW + tl.arange(0, ROW)[None, :]
        bits = tl.load(elements + index, mask=index < tl.where(good, count, 0), other=0).to(tl.uint32)
        fault = tl.where(good, OK, BAD_LENGTH)
    else:
        good = (num_bytes == UNIT_BYTES) & _is_zero(source, elem_bytes, num_bytes)
        bits += tl.load(elements, mask=good, other=0).to(tl.uint32)
        fault = tl.where(kind == CONSTANT, tl.where(good, OK, BAD_LENGTH), BAD_KIND)
    return bits, fault


@triton.jit
def _is_zero(source: tl.tensor, start: tl.tensor, stop: tl.tensor) -> tl.tensor:
    """Whether the padding, bytes from `start` on and before `stop`, is zero; at most 8 bytes are looked at."""
    index = start + tl.arange(0, UNIT_BYTES)
    return total(tl.load(source + index, mask=index < stop, other=0).to(tl.int32), 0) == 0


@triton.jit
def _decode_coded(
    source: tl.tensor,
    num_bytes: tl.tensor,
    count: tl.tensor,
    base: tl.tensor,
    codebook: tl.tensor,
    scratch: tl.tensor,
    CODING: tl.constexpr,
) -> tl.tensor:
    """One coded block: bits of its elements, and the fault if its parts do not add up."""
    plane_bytes = (count + 63) // 64 * 8
    codes_at = plane_bytes * (CODING.mantissa_bits + 1)
    deeper_at = codes_at + plane_bytes * CODING.width
    good = deeper_at <= num_bytes
    plane_bytes = tl.where(good, plane_bytes, 0)
    row = tl.arange(0, ROWS)
    joined = load_planes(source + codes_at, plane_bytes, row, CODING.width)
    passed = passed_of(joined, CODING.width) & first_bits(count - row * ROW)
    num_passed = num_set(passed)
    before = running_total(num_passed, 0) - num_passed
    low, high = _codebook(codebook)
    if CODING.width == 4:
        good = good & (num_bytes == padded(deeper_at + total(num_passed, 0)))
        deeper = _load_bytes(source, deeper_at + before, tl.where(good, num_bytes, 0))
    else:
        good = good & _decode_levels(source, num_bytes, deeper_at, total(num_passed, 0), low, high, scratch)
        deeper = _load_bytes(scratch, before, tl.where(good, BLOCK_ELEMENTS, 0))
    code = split_bits(joined)
    if CODING.width == 4:
        symbols = (tl.where(code < 8, low, high) >> ((code & 7) * 8).to(tl.uint64)).to(tl.uint32)
    else:
        symbols = low.to(tl.uint32) >> (code * 8)
    delta = _choose(passed, deeper, symbols)
    bits = _join(_load_rest(source, plane_bytes, row, CODING), delta + base, CODING)
    return bits, tl.where(good, OK, BAD_PARTS)


@triton.jit
def _codebook(codebook: tl.tensor) -> tl.tensor:
    """Its 16 bytes as two uint64; behind a codebook there is always a unit more of the stream's head."""
    shift = (codebook.to(tl.int64) % UNIT_BYTES * 8).to(tl.uint64)
    words = as_units(codebook - codebook.to(tl.int64) % UNIT_BYTES)
    first, second, third = tl.load(words), tl.load(words + 1), tl.load(words + 2)
    return first >> shift | (second << 1) << (63 - shift), second >> shift | (third << 1) << (63 - shift)


@triton.jit
def _load_bytes(source: tl.tensor, start: tl.tensor, limit: tl.tensor) -> tl.tensor:
    """For each `start`, the 8 bytes of `source` from there on, as uint64; zeros from `limit`, a multiple of 8, on."""
    unit = start // UNIT_BYTES
    shift = (start % UNIT_BYTES * 8).to(tl.uint64)
    units = as_units(source)
    low = tl.load(units + unit, mask=unit * UNIT_BYTES < limit, other=0)
    high = tl.load(units + unit + 1, mask=unit * UNIT_BYTES + UNIT_BYTES < limit, other=0)
    return low >> shift | (high << 1) << (63 - shift)


@triton.jit
def _choose(passed: tl.tensor, deeper: tl.tensor, symbols: tl.tensor) -> tl.tensor:
    """Deltas `[rows, ROW]`: where `passed` is set the next byte of the row's `deeper`, else the symbol's lowest."""
    shift, is_set = bits_before(passed)
    byte = (deeper[:, None] >> shift.to(tl.uint64)).to(tl.uint32)
    return tl.where(is_set, byte, symbols) & 255


@triton.jit
def _load_rest(source: tl.tensor, plane_bytes: tl.tensor, row: tl.tensor, CODING: tl.constexpr) -> tl.tensor:
    """Mantissa and, above it, sign of each element."""
    low_planes: tl.constexpr = (CODING.exponent_bits + CODING.mantissa_bits) // 8
    tail_bits: tl.constexpr = CODING.mantissa_bits + 1 - 8 * low_planes
    index = row[:, None] * ROW + tl.arange(0, ROW)[None, :]
    rest = (index * 0).to(tl.uint32)
    for j in tl.static_range(low_planes):
        byte = tl.load(source + j * plane_bytes * 8 + index, mask=row[:, None] < plane_bytes, other=0)
        rest |= byte.to(tl.uint32) << (8 * j)
    if tail_bits > 0:
        tails = split_bits(load_planes(source + low_planes * plane_bytes * 8, plane_bytes, row, tail_bits))
        rest |= tails << (8 * low_planes)
    return rest


@triton.jit
def _join(rest: tl.tensor, exponent: tl.tensor, CODING: tl.constexpr) -> tl.tensor:
    """Elements from their rest and exponent, which is cut to its bits."""
    sign: tl.constexpr = 1 << (CODING.exponent_bits + CODING.mantissa_bits)
    middle: tl.constexpr = sign - (1 << CODING.mantissa_bits)
    outer = ((rest << CODING.exponent_bits) & sign) | (rest & (sign - 1))
    return ((exponent << CODING.mantissa_bits) & middle) | (outer & (4294967295 - middle))


@triton.jit
def _decode_levels(
    source: tl.tensor,
    num_bytes: tl.tensor,
    at1: tl.tensor,
    num_codes1: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    scratch: tl.tensor,
) -> tl.tensor:
    """Deltas of the `num_codes1` elements past level 0 to `scratch`; returns whether the block's parts add up."""
    at2 = at1 + 2 * ceil_div(num_codes1, 8)
    num_codes2 = _count_passed(source + at1, num_codes1, at2 <= num_bytes)
    at3 = at2 + 2 * ceil_div(num_codes2, 8)
    num_codes3 = _count_passed(source + at2, num_codes2, at3 <= num_bytes)
    at4 = at3 + 2 * ceil_div(num_codes3, 8)
    num_escapes = _count_passed(source + at3, num_codes3, at4 <= num_bytes)
    good = num_bytes == padded(at4 + num_escapes)
    deeper, deeper_at, limit = source, at4, num_bytes
    target, other = scratch, scratch + BLOCK_ELEMENTS
    for step in range(3):
        planes = source + tl.where(step == 0, at3, tl.where(step == 1, at2, at1))
        num_codes = tl.where(step == 0, num_codes3, tl.where(step == 1, num_codes2, num_codes1))
        symbols = tl.where(step == 0, high >> 8, tl.where(step == 1, low >> 48 | high << 16, low >> 24)).to(tl.uint32)
        _decode_level(planes, tl.where(good, num_codes, 0), deeper, deeper_at, limit, target, symbols)
        deeper, deeper_at, limit = target, 0, BLOCK_ELEMENTS
        target, other = other, target
    return good


@triton.jit
def _count_passed(planes: tl.tensor, num_codes: tl.tensor, good: tl.tensor) -> tl.tensor:
    """How many of a level's codes pass their element on; none if the planes are not there."""
    plane_bytes = tl.where(good, ceil_div(num_codes, 8), 0)
    row = tl.arange(0, ROWS)
    passed = passed_of(load_planes(planes, plane_bytes, row, 2), 2) & first_bits(num_codes - row * ROW)
    return total(num_set(passed), 0)


@triton.jit
def _decode_level(
    planes: tl.tensor,
    num_codes: tl.tensor,
    deeper: tl.tensor,
    deeper_at: tl.tensor,
    limit: tl.tensor,
    deltas: tl.tensor,
    symbols: tl.tensor,
) -> None:
    """Write the deltas of a level's elements; those of elements it passes on begin at byte `deeper_at` of `deeper`."""
    plane_bytes = ceil_div(num_codes, 8)
    for start in range(0, plane_bytes, LEVEL_ROWS):
        row = start + tl.arange(0, LEVEL_ROWS)
        joined = load_planes(planes, plane_bytes, row, 2)
        passed = passed_of(joined, 2) & first_bits(num_codes - row * ROW)
        num_passed = num_set(passed)
        before = running_total(num_passed, 0) - num_passed
        delta = _choose(passed, _load_bytes(deeper, deeper_at + before, limit), symbols >> (split_bits(joined) * 8))
        place = row[:, None] * ROW + tl.arange(0, ROW)[None, :]
        tl.store(deltas + place, delta.to(tl.uint8), mask=row[:, None] < plane_bytes)
        deeper_at += total(num_passed, 0)
    tl.debug_barrier()
