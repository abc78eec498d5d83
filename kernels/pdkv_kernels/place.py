"""Where each block of a cascade stream begins: the sum of the lengths before it."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pdkv_kernels.planes import ceil_div, running_total, total

TILE = tl.constexpr(1024)
LENGTH_MASK = tl.constexpr(0x3FFF)


def place(
    max_programs: int, stream: Any, directory_at: int, num_blocks: int, first_unit: int, starts: Any, status: Any
) -> None:
    """Write the unit of `stream` at which each block begins to `starts`, int64, and where the last ends to `status[0]`.

    stream: uint8; its directory begins at byte `directory_at`. first_unit: where the first block begins.
    """
    num_programs = min(triton.cdiv(num_blocks, TILE.value), max_programs)
    place_kernel[(num_programs,)](stream, directory_at, num_blocks, first_unit, starts, status)


@triton.jit(do_not_specialize=["directory_at", "num_blocks", "first_unit"])
def place_kernel(
    stream: tl.tensor,
    directory_at: tl.tensor,
    num_blocks: tl.tensor,
    first_unit: tl.tensor,
    starts: tl.tensor,
    status: tl.tensor,
) -> None:
    """Programs share tiles of blocks; each sums what lies before its tiles itself and waits for nobody."""
    directory = (stream + directory_at).to(tl.pointer_type(tl.uint16), bitcast=True)
    num_tiles = ceil_div(num_blocks, TILE)
    before = first_unit.to(tl.int64)
    summed = 0
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        for earlier in range(summed, tile):
            before += total(_lengths(directory, earlier, num_blocks), 0)
        summed = tile
        lengths = _lengths(directory, tile, num_blocks)
        index = tile * TILE + tl.arange(0, TILE)
        ends = before + running_total(lengths, 0)
        tl.store(starts + index, ends - lengths, mask=index < num_blocks)
        if tile == num_tiles - 1:
            tl.store(status, before + total(lengths, 0))


@triton.jit
def _lengths(directory: tl.tensor, tile: tl.tensor, num_blocks: tl.tensor) -> tl.tensor:
    """Lengths in units of the blocks of one tile; int32, zero past the last."""
    index = tile * TILE + tl.arange(0, TILE)
    return tl.load(directory + index, mask=index < num_blocks, other=0).to(tl.int32) & LENGTH_MASK
