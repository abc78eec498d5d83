"""Compaction: blocks in slots to the stream, one behind another; and its length and check."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pdkv_kernels.planes import CHECK_UNIT, LENGTH_UNIT, UNIT_BYTES, UNITS, as_units, check_of, total


def pack(
    num_programs: int,
    stream: Any,
    slots: Any,
    slot_bytes: int,
    starts: Any,
    num_blocks: int,
    head_units: int,
    max_units: int,
    status: Any,
) -> None:
    """Complete `stream`, whose first `head_units` units are there but for length and check, both zero.

    slots: as `encode` filled them. starts, status: from `place`. A stream of more than `max_units` is left as it is.
    """
    pack_kernel[(num_programs,)](stream, slots, starts, num_blocks, head_units, max_units, status, slot_bytes)


@triton.jit(do_not_specialize=["num_blocks", "head_units", "max_units"])
def pack_kernel(
    stream: tl.tensor,
    slots: tl.tensor,
    starts: tl.tensor,
    num_blocks: tl.tensor,
    head_units: tl.tensor,
    max_units: tl.tensor,
    status: tl.tensor,
    SLOT_BYTES: tl.constexpr,
) -> None:
    """Programs share blocks and head; each adds its part of the check once, atomically."""
    num_units = tl.load(status)
    if num_units <= max_units:
        checks = _finish_head(as_units(stream), head_units, num_units)
        for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
            start = tl.load(starts + block)
            last = block + 1 == num_blocks
            end = tl.where(last, num_units, tl.load(starts + block + 1, mask=block + 1 < num_blocks, other=0))
            slot = as_units(slots + tl.cast(block, tl.int64) * SLOT_BYTES)
            checks += _copy(slot, as_units(stream), start, (end - start).to(tl.int32))
        word = stream.to(tl.pointer_type(tl.uint32), bitcast=True) + 2 * CHECK_UNIT
        tl.atomic_add(word, total(checks, 0), sem="relaxed")


@triton.jit
def _copy(slot: tl.tensor, stream: tl.tensor, start: tl.tensor, count: tl.tensor) -> tl.tensor:
    """Copy `count` units; returns what they add to the check, in parts."""
    checks = tl.full((UNITS,), 0, tl.uint32)
    for at in range(0, count, UNITS):
        index = at + tl.arange(0, UNITS)
        units = tl.load(slot + index, mask=index < count, other=0)
        tl.store(stream + start + index, units, mask=index < count)
        checks += check_of(units, start + index)
    return checks


@triton.jit
def _finish_head(stream: tl.tensor, head_units: tl.tensor, num_units: tl.tensor) -> tl.tensor:
    """Write the length into the header; returns what the program's share of the head adds to the check, in parts."""
    checks = tl.full((UNITS,), 0, tl.uint32)
    for at in range(tl.program_id(0) * UNITS, head_units, tl.num_programs(0) * UNITS):
        index = at + tl.arange(0, UNITS)
        units = tl.load(stream + index, mask=index < head_units, other=0)
        length = (num_units * UNIT_BYTES).to(tl.uint64) << 32
        units = tl.where(index == LENGTH_UNIT, units | length, units)
        tl.store(stream + index, units, mask=index == LENGTH_UNIT)
        units = tl.where(index == CHECK_UNIT, (units >> 32) << 32, units)  # others add to it meanwhile
        checks += check_of(units, index)
    return checks
