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
    CANDIDATES,
    DIRECTORY_AT,
    FIRST_BLOCK,
    FIRST_SEGMENT,
    LOOKUPS,
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
    num_elements = tl.load(plan + NUM_TOKENS).to(tl.int32) * PAGING.head_dim
    num_blocks = ceil_div(num_elements, BLOCK_ELEMENTS)
    for index in range(tl.program_id(0), tl.load(plan + NUM_BLOCKS).to(tl.int32), tl.num_programs(0)):
        start = index % num_blocks * BLOCK_ELEMENTS
        origin, block_ids, segment = segment_of(kv, plan, index // num_blocks, PAGING)
        block = segment * num_blocks + index % num_blocks
        place, dim, held = tile_of(kv, plan, block_ids, start, num_elements, PAGING)
        bits = bits_of(tl.load(kv.memory + origin + place, mask=held, other=0))
        base = bases_of(stream, table_at(plan, segment, PAGING, CODING), dim, CODING)
        lookup = lookups + LOOKUPS * (tl.load(plan + FIRST_SEGMENT) + segment)
        slot = slots + (tl.load(plan + FIRST_BLOCK) + block) * SLOT_BYTES
        count = tl.minimum(num_elements - start, BLOCK_ELEMENTS)
        entry = _encode_block(bits, held, base, count, lookup, slot, scratch, SLOT_BYTES, CODING)
        directory = (stream + tl.load(plan + DIRECTORY_AT)).to(tl.pointer_type(tl.uint16), bitcast=True)
        tl.store(directory + block, entry.to(tl.uint16))
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
    SLOT_BYTES: tl.constexpr,
    CODING: tl.constexpr,
) -> tl.tensor:
    """One block of `count` elements to `slot`; returns its directory entry."""
    elem_bytes: tl.constexpr = (1 + CODING.exponent_bits + CODING.mantissa_bits) // 8
    raw_bytes = padded(count * elem_bytes)
    least = least_of(tl.where(held, bits, 0xFFFFFFFF))
    if ~least_of(~bits) == least:
        tl.store(as_units(slot), least.to(tl.uint64))
        entry = (CONSTANT << 14) + 1
    else:
        exponent = (bits >> CODING.mantissa_bits) & ((1 << CODING.exponent_bits) - 1)
        index = (exponent - base + CANDIDATES // 2) & 255
        plane_bytes = (count + 63) // 64 * 8
        _store_rest(bits, plane_bytes, slot, CODING)
        end = _store_codes(index, held, plane_bytes, lookup, slot, scratch, SLOT_BYTES, CODING)
        num_bytes = padded(end)
        entry = (CODED << 14) + num_bytes // UNIT_BYTES
        if num_bytes < raw_bytes:
            padding = end + tl.arange(0, UNIT_BYTES)
            tl.store(slot + padding, tl.full((UNIT_BYTES,), 0, tl.uint8), mask=padding < num_bytes)
        else:
            tl.debug_barrier()  # others may still write what is written over here
            _store_elements(bits, raw_bytes // elem_bytes, slot, elem_bytes)
            entry = (STORED << 14) + raw_bytes // UNIT_BYTES
    return entry


@triton.jit
def _store_codes(
    index: tl.tensor,
    held: tl.tensor,
    plane_bytes: tl.tensor,
    lookup: tl.tensor,
    slot: tl.tensor,
    scratch: tl.tensor,
    SLOT_BYTES: tl.constexpr,
    CODING: tl.constexpr,
) -> tl.tensor:
    """All levels and the escapes, as far as the slot holds them; returns where they end."""
    row = tl.arange(0, ROWS)
    at = plane_bytes * (CODING.mantissa_bits + 1)
    end = at + plane_bytes * CODING.width
    if CODING.width == 4:
        code = tl.where(held, nibble_of(index, lookup), 0)
        end += _store_level(code, index, slot + at, plane_bytes, row, slot + end, SLOT_BYTES - end, TO_DELTA, 4)
    else:
        code = tl.where(held, pair_of(index, lookup), 0)
        num_codes = _store_level(code, index, slot + at, plane_bytes, row, scratch, BLOCK_ELEMENTS, 0, 2)
        end = _store_deeper(num_codes, end, lookup, slot, scratch, SLOT_BYTES)
    return end


@triton.jit
def nibble_of(index: tl.tensor, lookup: tl.tensor) -> tl.tensor:
    """The code of each delta, given plus 16 modulo 256: 4 bits of the two numbers at `lookup`, or 15; uint32."""
    low, high = tl.load(lookup).to(tl.uint64, bitcast=True), tl.load(lookup + 1).to(tl.uint64, bitcast=True)
    codes = tl.where(index < 16, low, high) >> ((index & 15) * 4).to(tl.uint64)
    return tl.where(index < CANDIDATES, codes.to(tl.uint32) & 15, 15)


@triton.jit
def pair_of(index: tl.tensor, lookup: tl.tensor) -> tl.tensor:
    """The same for a level of 2-bit codes: 2 bits of the number at `lookup`, or 3."""
    codes = tl.load(lookup).to(tl.uint64, bitcast=True) >> ((index & (CANDIDATES - 1)) * 2).to(tl.uint64)
    return tl.where(index < CANDIDATES, codes.to(tl.uint32) & 3, 3)


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
    room: tl.tensor,
    bias: tl.tensor,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Codes of one level to `planes`; of elements that pass it, `index + bias` to `passed_on`, at most `room`.

    Returns how many pass.
    """
    joined = join_bits(code)
    store_planes(planes, plane_bytes, row, joined, WIDTH)
    passed = passed_of(joined, WIDTH)
    count = num_set(passed)
    before = running_total(count, 0) - count
    shift, is_set = bits_before(passed)
    packed = total(tl.where(is_set, index, 0).to(tl.uint64) << shift.to(tl.uint64), 1)
    fitting = tl.minimum(count, room - before)
    for j in range(most_of(fitting)):
        byte = ((packed >> tl.cast(8 * j, tl.uint64)).to(tl.int32) + bias).to(tl.uint8)
        tl.store(passed_on + before + j, byte, mask=j < fitting)
    return total(count, 0)


@triton.jit
def _store_deeper(
    num_codes: tl.tensor,
    at: tl.tensor,
    lookup: tl.tensor,
    slot: tl.tensor,
    scratch: tl.tensor,
    SLOT_BYTES: tl.constexpr,
) -> tl.tensor:
    """Levels 1 to 3 and escapes to byte `at` of `slot`, of the elements in `scratch`; returns where they end."""
    for level in range(1, 4):
        tl.debug_barrier()
        plane_bytes = ceil_div(num_codes, 8)
        planes, end = slot + at, at + 2 * plane_bytes
        source = scratch + (level - 1) % 2 * BLOCK_ELEMENTS
        target, room, bias = scratch + level % 2 * BLOCK_ELEMENTS, BLOCK_ELEMENTS, 0
        if level == 3:
            target, room, bias = slot + end, SLOT_BYTES - end, TO_DELTA
        fitting_bytes = tl.where(end <= SLOT_BYTES, plane_bytes, 0)
        num_passed = 0
        for start in range(0, plane_bytes, LEVEL_ROWS):
            row = start + tl.arange(0, LEVEL_ROWS)
            place = row[:, None] * ROW + tl.arange(0, ROW)[None, :]
            index = tl.load(source + place, mask=row[:, None] < plane_bytes, other=0).to(tl.uint32)
            code = tl.where(place < num_codes, pair_of(index, lookup + level), 0)
            passed_on = target + num_passed
            num_passed += _store_level(code, index, planes, fitting_bytes, row, passed_on, room - num_passed, bias, 2)
        at, num_codes = end, num_passed
    return at + num_codes
