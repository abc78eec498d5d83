"""Paged KV to a slab: one plane of one layer, in any layout, to `[head][token][dim]`."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pdkv_kernels.paged import PagedPlane, axis_offset, launch, paged_offset


def gather(
    memory: Any, slab: Any, block_ids: Any, first_token: int, num_tokens: int, num_heads: int, at: PagedPlane
) -> None:
    """Copy the tokens' elements of one plane into `slab`.

    memory, slab: 1-D integer tensors of the element's size; slab holds `num_heads * num_tokens * head_dim` elements.
    block_ids: int64, the blocks that hold the tokens, in token order; `first_token` is counted inside the first one.
    """
    launch(gather_kernel, memory, slab, block_ids, first_token, num_tokens, num_heads, at)


# These two differ in every slab; a variant for each kind of value would compile in the middle of a transfer.
@triton.jit(do_not_specialize=["first_token", "num_tokens"])
def gather_kernel(
    memory: tl.tensor,
    slab: tl.tensor,
    block_ids: tl.tensor,
    first_token: tl.tensor,
    num_tokens: tl.tensor,
    origin: tl.tensor,
    block_stride: tl.tensor,
    head_stride: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKEN_FACTOR: tl.constexpr,
    TOKEN_OUTER: tl.constexpr,
    TOKEN_INNER: tl.constexpr,
    DIM_FACTOR: tl.constexpr,
    DIM_OUTER: tl.constexpr,
    DIM_INNER: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_DIMS: tl.constexpr,
) -> None:
    """One tile of tokens of one head; grid (tiles of tokens, heads)."""
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * TILE_TOKENS + tl.arange(0, TILE_TOKENS)
    dim = tl.arange(0, TILE_DIMS)
    held = row < num_tokens
    mask = held[:, None] & (dim < HEAD_DIM)[None, :]
    token = paged_offset(
        row + first_token, held, block_ids, block_stride, BLOCK_SIZE, TOKEN_FACTOR, TOKEN_OUTER, TOKEN_INNER
    )
    there = memory + origin + head * head_stride + token[:, None]
    there += axis_offset(dim, DIM_FACTOR, DIM_OUTER, DIM_INNER)[None, :]
    here = slab + head * num_tokens * HEAD_DIM + row[:, None].to(tl.int64) * HEAD_DIM + dim[None, :]
    tl.store(here, tl.load(there, mask=mask), mask=mask)
