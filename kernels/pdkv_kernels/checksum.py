"""A checksum of bytes on the device: their sum modulo 2^32, each times an odd number of its place."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pdkv_kernels.planes import CHECK_FACTOR, total

MAX_PROGRAMS = 256
TILE_BYTES = 4096


def checksum(data: Any, out: Any) -> None:
    """Add the checksum of `data`, a uint8 tensor, to `out`, an int32 tensor of one element."""
    num_programs = min(MAX_PROGRAMS, triton.cdiv(data.numel(), TILE_BYTES))
    if num_programs:
        checksum_kernel[(num_programs,)](data, data.numel(), out, TILE_BYTES)


@triton.jit
def _sums(byte: tl.tensor, index: tl.tensor) -> tl.tensor:
    """What each byte adds."""
    return byte.to(tl.uint32) * ((index.to(tl.uint32) * 2 + 1) * CHECK_FACTOR)


@triton.jit(do_not_specialize=["num_bytes"])
def checksum_kernel(data: tl.tensor, num_bytes: tl.tensor, out: tl.tensor, TILE: tl.constexpr) -> None:
    """Programs take tiles in turn; each adds its part once, atomically: the order does not matter."""
    sums, place = tl.full((TILE,), 0, tl.uint32), tl.arange(0, TILE)
    num_full = num_bytes // TILE
    for tile in range(tl.program_id(0), num_full, tl.num_programs(0)):
        index = tile * TILE + place
        sums += _sums(tl.load(data + index), index)  # without a mask: sixteen bytes at a time
    if tl.program_id(0) == num_full % tl.num_programs(0):
        index = num_full * TILE + place
        sums += _sums(tl.load(data + index, mask=index < num_bytes, other=0), index)
    tl.atomic_add(out.to(tl.pointer_type(tl.uint32), bitcast=True), total(sums, 0), sem="relaxed")
