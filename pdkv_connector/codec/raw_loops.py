"""Loops of the raw codec on host memory: one plane of one layer to `[head][token][dim]`, and back.

Indices are unsigned: numba then leaves out its test for negative ones, which would cost a third of the speed. Dims go
in tiles, so that the strided side of a transposed block stays in the first-level cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = Any
U64 = np.uint64
DIM_TILE = np.uint64(64)
ZERO, ONE = np.uint64(0), np.uint64(1)


@njit(nogil=True, cache=True)
def move(
    memory: Array,
    slab: Array,
    block_ids: Array,
    geometry: tuple[int, int, int, int],
    origin: tuple[int, int, int],
    token: Array,
    dim: Array,
    is_rows: bool,
    to_memory: bool,
) -> None:
    """Copy one plane between `memory` and `slab`; bounds are the caller's to check.

    memory: 1-D tensor of units. slab: 1-D, `heads * tokens * dim.size` units. block_ids: uint64, the blocks that hold
    the tokens, in token order. geometry: (block size, first token in the first block, tokens, heads). origin: (offset
    of block 0 at the first head, block stride, head stride). token, dim: uint64 offsets, `[block size]` and
    `[units of a token]`. is_rows: a token's units are contiguous in `memory`.
    """
    block_size, first, num_tokens, num_heads = geometry
    width = U64(dim.size)
    for head in range(num_heads):
        inside, done = first, 0
        for index in range(block_ids.size):
            count = min(block_size - inside, num_tokens - done)
            base = U64(origin[0] + head * origin[2]) + block_ids[index] * U64(origin[1])
            at = U64(head * num_tokens + done) * width
            tokens = token[inside : inside + count]
            if is_rows:
                _move_rows(memory, slab, base, at, tokens, dim.size, to_memory)
            elif to_memory:
                _scatter_block(memory, slab, base, at, tokens, dim)
            else:
                _gather_block(memory, slab, base, at, tokens, dim)
            inside, done = 0, done + count


@njit(nogil=True, cache=True)
def _gather_block(memory: Array, slab: Array, base: int, at: int, token: Array, dim: Array) -> None:
    width = U64(dim.size)
    for start in range(ZERO, width, DIM_TILE):
        stop = min(start + DIM_TILE, width)
        for t in range(U64(token.size)):
            source, target = base + token[t], at + t * width
            for d in range(start, stop):
                slab[target + d] = memory[source + dim[d]]


@njit(nogil=True, cache=True)
def _scatter_block(memory: Array, slab: Array, base: int, at: int, token: Array, dim: Array) -> None:
    width = U64(dim.size)
    for start in range(ZERO, width, DIM_TILE):
        stop = min(start + DIM_TILE, width)
        for t in range(U64(token.size)):
            target, source = base + token[t], at + t * width
            for d in range(start, stop):
                memory[target + dim[d]] = slab[source + d]


@njit(nogil=True, cache=True)
def _move_rows(memory: Array, slab: Array, base: int, at: int, token: Array, width: int, to_memory: bool) -> None:
    for t in range(token.size):
        there = base + token[U64(t)]
        here = at + U64(t) * U64(width)
        row = memory[there : there + U64(width)]
        line = slab[here : here + U64(width)]
        if to_memory:
            for d in range(width):
                row[d] = line[d]
        else:
            for d in range(width):
                line[d] = row[d]
