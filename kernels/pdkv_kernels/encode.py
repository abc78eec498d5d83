"""Gather and encode: each block of a group's segments, paged, to a slot of its own and a directory entry."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pdkv_kernels.planes import (
    CODED,
    CONSTANT,
    LEVEL_ROWS,
    STORED,
    UNIT_BYTES,
    as_units,
    bits_before,
    ceil_div,
    join_bits,
    least_of,
    most_of,
    num_set,
    padded,
    passed_of,
    running_total,
    store_planes,
    total,
)
from pdkv_kernels.segments import (
    BLOCK_ELEMENTS,
    DIRECTORY_AT,
    FIRST_BLOCK,
    FIRST_SEGMENT,
    NUM_BLOCKS,
    NUM_TOKENS,
    ROW,
    ROWS,
    Coding,
    Paged,
    Paging,
    bases_of,
    bits_of,
    segment_of,
    table_at,
    tile_of,
)

CANDIDATES = tl.constexpr(32)
"""Deltas from -16 to 15 have codes."""
TO_DELTA = tl.constexpr(-16)


def encode(
    num_programs: int,
    kv: Paged,
    plan: Any,
    stream: Any,
    lookups: Any,
    slots: Any,
    slot_bytes: int,
    scratch: Any,
    paging: Paging,
    coding: Coding,
) -> None:
    """Code a group's blocks; the tables in `stream` and `lookups` come from `make_tables`.

    slots: uint8, `slot_bytes` for every block of the stream, as many as its elements take.
    scratch: uint8, `2 * 4096` a program.
    """
    encode_kernel[(num_programs,)](kv, plan, stream, lookups, slots, scratch, slot_bytes, paging, coding)


@triton.jit
def encode_kernel(
    kv: tl.tensor,
    plan: tl.tensor,
    stream: tl.tensor,
    lookups: tl.tensor,
    slots: tl.tensor,
    scratch: tl.tensor,
    SLOT_BYTES: tl.constexpr,
    PAGING: tl.constexpr,
    CODING: tl.constexpr,
) -> None:
    """Programs share the group's blocks."""
    scratch += tl.program_id(0) * (2 * BLOCK_ELEMENTS)
    directory = (stream + tl.load(plan + DIRECTORY_AT)).to(tl.pointer_type(tl.uint16), bitcast=True)
    num_elements = tl.load(plan + NUM_TOKENS).to(tl.int32) * PAGING.head_dim
    num_blocks = ceil_div(num_elements, BLOCK_ELEMENTS)
    for index in range(tl.program_id(0), tl.load(plan + NUM_BLOCKS).to(tl.int32), tl.num_programs(0)):
        start = index % num_blocks * BLOCK_ELEMENTS
        origin, block_ids, segment = segment_of(kv, plan, index // num_blocks, PAGING)
        block = segment * num_blocks + index % num_blocks
        place, dim, held = tile_of(kv, plan, block_ids, start, num_elements, PAGING)
        bits = bits_of(tl.load(kv.memory + origin + place, mask=held, other=0))
        base = bases_of(stream, table_at(plan, segment, PAGING, CODING), dim, CODING)
        lookup = lookups + 2 * (tl.load(plan + FIRST_SEGMENT) + segment)
        slot = slots + (tl.load(plan + FIRST_BLOCK) + block) * SLOT_BYTES
        count = tl.minimum(num_elements - start, BLOCK_ELEMENTS)
        tl.store(directory + block, _encode_block(bits, held, base, count, lookup, slot, scratch, CODING).to(tl.uint16))
        tl.debug_barrier()  # the scratch is read to its end before the next block fills it


@triton.jit
def _encode_block(
    bits: tl.tensor,
    held: tl.tensor,
    base: tl.tensor,
    count: tl.tensor,
    lookup: tl.tensor,
    slot: tl.tensor,
    scratch: tl.tensor,
    CODING: tl.constexpr,
) -> tl.tensor:
    """One block of `count` elements to `slot`; returns its directory entry."""
    elem_bytes: tl.constexpr = (1 + CODING.exponent_bits + CODING.mantissa_bits) // 8
    low, high = tl.load(lookup).to(tl.uint64, bitcast=True), tl.load(lookup + 1).to(tl.uint64, bitcast=True)
    exponent = (bits >> CODING.mantissa_bits) & ((1 << CODING.exponent_bits) - 1)
    index = (exponent - base + CANDIDATES // 2) & 255
    code = tl.where(held, code_of(index, low, high), 0)
    plane_bytes = (count + 63) // 64 * 8
    codes_at = plane_bytes * (CODING.mantissa_bits + 1)
    deeper_at = codes_at + plane_bytes * CODING.width
    escapes_at, num_escapes = _sizes(code, deeper_at, CODING.width)
    num_bytes, raw_bytes = padded(escapes_at + num_escapes), padded(count * elem_bytes)
    least = least_of(tl.where(held, bits, 0xFFFFFFFF))
    if ~least_of(~bits) == least:
        tl.store(as_units(slot), least.to(tl.uint64))
        entry = (CONSTANT << 14) + 1
    elif num_bytes < raw_bytes:
        _store_rest(bits, plane_bytes, slot, CODING)
        end = tl.arange(0, UNIT_BYTES) + escapes_at + num_escapes
        tl.store(slot + end, tl.full((UNIT_BYTES,), 0, tl.uint8), mask=end < num_bytes)
        row = tl.arange(0, ROWS)
        first = tl.minimum(code, (1 << CODING.width) - 1)
        if CODING.width == 4:
            _store_level(first, index, slot + codes_at, plane_bytes, row, slot + escapes_at, TO_DELTA, 4)
        else:
            num_codes = _store_level(first, index, slot + codes_at, plane_bytes, row, scratch, 0, 2)
            _code_levels(num_codes, low, high, slot + deeper_at, slot + escapes_at, scratch)
        entry = (CODED << 14) + num_bytes // UNIT_BYTES
    else:
        _store_elements(bits, raw_bytes // elem_bytes, slot, elem_bytes)
        entry = (STORED << 14) + raw_bytes // UNIT_BYTES
    return entry


@triton.jit
def code_of(index: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """4 bits for each delta, given plus 16 modulo 256: from `low` below 16, from `high` below 32, else 15; uint32."""
    codes = tl.where(index < 16, low, high) >> ((index & 15) * 4).to(tl.uint64)
    return tl.where(index < CANDIDATES, codes.to(tl.uint32) & 15, 15)


@triton.jit
def _sizes(code: tl.tensor, deeper_at: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """Where escapes begin, past the levels that begin at `deeper_at`, and how many there are."""
    if WIDTH == 2:
        levels = total(tl.full((1, 1), 1, tl.uint32) << (code & 12), 1)  # four bits a level
        num_codes = total(((levels >> 12) & 15).to(tl.int32), 0)
        deeper_at += 2 * ceil_div(num_codes, 8)
        num_codes += total(((levels >> 8) & 15).to(tl.int32), 0)
        deeper_at += 2 * ceil_div(num_codes, 8)
        num_codes += total(((levels >> 4) & 15).to(tl.int32), 0)
        deeper_at += 2 * ceil_div(num_codes, 8)
    return deeper_at, total(total((code == 15).to(tl.int32), 1), 0)


@triton.jit
def _store_rest(bits: tl.tensor, plane_bytes: tl.tensor, slot: tl.tensor, CODING: tl.constexpr) -> None:
    """Mantissa and sign: planes of bytes, then planes of the bits left over."""
    low_planes: tl.constexpr = (CODING.exponent_bits + CODING.mantissa_bits) // 8
    tail_bits: tl.constexpr = CODING.mantissa_bits + 1 - 8 * low_planes
    sign: tl.constexpr = 1 << CODING.mantissa_bits
    rest = ((bits >> CODING.exponent_bits) & sign) | (bits & (sign - 1))
    row = tl.arange(0, ROWS)
    index = row[:, None] * ROW + tl.arange(0, ROW)[None, :]
    for j in tl.static_range(low_planes):
        byte = ((rest >> (8 * j)) & 255).to(tl.uint8)
        tl.store(slot + j * plane_bytes * 8 + index, byte, mask=row[:, None] < plane_bytes)
    if tail_bits > 0:
        joined = join_bits(rest >> (8 * low_planes))
        store_planes(slot + low_planes * plane_bytes * 8, plane_bytes, row, joined, tail_bits)


@triton.jit
def _store_elements(bits: tl.tensor, count: tl.tensor, slot: tl.tensor, ELEM_BYTES: tl.constexpr) -> None:
    """The first `count` elements, bit for bit; those past the block's own are zero."""
    kind: tl.constexpr = tl.uint8 if ELEM_BYTES == 1 else (tl.uint16 if ELEM_BYTES == 2 else tl.uint32)
    index = tl.arange(0, ROWS)[:, None] * ROW + tl.arange(0, ROW)[None, :]
    tl.store(slot.to(tl.pointer_type(kind), bitcast=True) + index, bits.to(kind), mask=index < count)


@triton.jit
def _store_level(
    code: tl.tensor,
    index: tl.tensor,
    planes: tl.tensor,
    plane_bytes: tl.tensor,
    row: tl.tensor,
    passed_on: tl.tensor,
    bias: tl.tensor,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Codes of one level to `planes`; of elements that pass it, `index + bias` to `passed_on`. Returns their number."""
    joined = join_bits(code)
    store_planes(planes, plane_bytes, row, joined, WIDTH)
    passed = passed_of(joined, WIDTH)
    count = num_set(passed)
    before = running_total(count, 0) - count
    shift, is_set = bits_before(passed)
    packed = total(tl.where(is_set, index, 0).to(tl.uint64) << shift.to(tl.uint64), 1)
    for j in range(most_of(count)):
        byte = ((packed >> tl.cast(8 * j, tl.uint64)).to(tl.int32) + bias).to(tl.uint8)
        tl.store(passed_on + before + j, byte, mask=j < count)
    return total(count, 0)


@triton.jit
def _code_levels(
    num_codes: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    planes: tl.tensor,
    escapes: tl.tensor,
    scratch: tl.tensor,
) -> None:
    """Levels 1 to 3 to `planes`, of the `num_codes` elements that level 0 has put into `scratch`."""
    source, target = scratch, scratch + BLOCK_ELEMENTS
    bias = 0
    for level in range(1, 4):
        tl.debug_barrier()
        if level == 3:
            target, bias = escapes, TO_DELTA
        plane_bytes = ceil_div(num_codes, 8)
        num_passed = 0
        for start in range(0, plane_bytes, LEVEL_ROWS):
            row = start + tl.arange(0, LEVEL_ROWS)
            place = row[:, None] * ROW + tl.arange(0, ROW)[None, :]
            index = tl.load(source + place, mask=row[:, None] < plane_bytes, other=0).to(tl.uint32)
            code = tl.minimum(code_of(index, low, high) - 4 * level, 3)
            code = tl.where(place < num_codes, code, 0)
            num_passed += _store_level(code, index, planes, plane_bytes, row, target + num_passed, bias, 2)
        planes += 2 * plane_bytes
        num_codes = num_passed
        source, target = target, source
