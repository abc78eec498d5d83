"""What the paged kernels share: the place of a plane, index arithmetic, the launch."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

TILE_ELEMENTS = 4096


class PagedPlane(NamedTuple):
    """Where one plane of one layer lies, counted in elements; an axis is `(factor, outer stride, inner stride)`.

    Index `i` of an axis lies at `(i // factor) * outer + (i % factor) * inner`. origin: block 0, first head wanted.
    """

    block_size: int
    head_dim: int
    origin: int
    block_stride: int
    head_stride: int
    token: tuple[int, int, int]
    dim: tuple[int, int, int]


def launch(
    kernel: Any,
    memory: Any,
    slab: Any,
    block_ids: Any,
    first_token: int,
    num_tokens: int,
    num_heads: int,
    at: PagedPlane,
) -> None:
    """Queue `kernel` over tiles of tokens and heads on the current stream; arguments as the kernels describe them."""
    tile_dims = triton.next_power_of_2(at.head_dim)
    tile_tokens = max(1, TILE_ELEMENTS // tile_dims)
    scalars = (first_token, num_tokens, at.origin, at.block_stride, at.head_stride)
    constants = (at.block_size, at.head_dim, *at.token, *at.dim, tile_tokens, tile_dims)
    kernel[(triton.cdiv(num_tokens, tile_tokens), num_heads)](memory, slab, block_ids, *scalars, *constants)


@triton.jit
def axis_offset(index: tl.tensor, FACTOR: tl.constexpr, OUTER: tl.constexpr, INNER: tl.constexpr) -> tl.tensor:
    """Element offset of `index` along a two-level axis; a plain axis stays visibly contiguous to the compiler."""
    return index * OUTER if FACTOR == 1 else (index // FACTOR) * OUTER + (index % FACTOR) * INNER


@triton.jit
def paged_offset(
    token: tl.tensor,
    held: tl.tensor,
    block_ids: tl.tensor,
    block_stride: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    FACTOR: tl.constexpr,
    OUTER: tl.constexpr,
    INNER: tl.constexpr,
) -> tl.tensor:
    """Element offset of each `token`, counted from the start of the first block in `block_ids`; 64 bits wide."""
    block = tl.load(block_ids + token // BLOCK_SIZE, mask=held, other=0).to(tl.int64)
    return block * block_stride + axis_offset(token % BLOCK_SIZE, FACTOR, OUTER, INNER)
