"""The table of each segment, from a sample of its tokens: a base a channel and a codebook."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pdkv_kernels.paged import TILE_ELEMENTS, axis_offset
from pdkv_kernels.planes import ceil_div, total
from pdkv_kernels.segments import (
    CANDIDATES,
    CODEBOOK_BYTES,
    FIRST_SEGMENT,
    FIRST_TOKEN,
    LOOKUPS,
    NUM_SEGMENTS,
    NUM_TOKENS,
    Coding,
    Paged,
    Paging,
    bits_of,
    segment_of,
    table_at,
    tokens_at,
)

SAMPLE_TOKENS = tl.constexpr(256)
COUNT_EVERY = tl.constexpr(4)


def make_tables(
    num_programs: int, kv: Paged, plan: Any, stream: Any, lookups: Any, paging: Paging, coding: Coding
) -> None:
    """Write the tables of a group's segments into `stream`, uint8, where they belong.

    plan: as `segments` describes. lookups: int64 `[segments of the stream, LOOKUPS]`, for `encode`: the codes of the
    deltas from -16 to 15, one behind another from the lowest bit on. Codes of 2 bits: a number for each level. Of 4
    bits: the first number for the deltas below 0, the second for the others. All ones: it has no code there.
    """
    tile_dims = triton.next_power_of_2(paging.head_dim)
    table_kernel[(num_programs,)](
        kv, plan, stream, lookups, paging, coding, max(1, TILE_ELEMENTS // tile_dims), tile_dims
    )


@triton.jit
def table_kernel(
    kv: tl.tensor,
    plan: tl.tensor,
    stream: tl.tensor,
    lookups: tl.tensor,
    PAGING: tl.constexpr,
    CODING: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_DIMS: tl.constexpr,
) -> None:
    """Programs share the group's segments."""
    for index in range(tl.program_id(0), tl.load(plan + NUM_SEGMENTS).to(tl.int32), tl.num_programs(0)):
        origin, block_ids, segment = segment_of(kv, plan, index, PAGING)
        table = stream + table_at(plan, segment, PAGING, CODING)
        base = _bases(kv, plan, origin, block_ids, PAGING, CODING, TILE_TOKENS, TILE_DIMS)
        dim = tl.arange(0, TILE_DIMS)
        held = dim < (PAGING.head_dim if CODING.per_channel else 1)
        tl.store(table + CODEBOOK_BYTES + dim, base.to(tl.uint8), mask=held)
        counts = _counts(kv, plan, origin, block_ids, base, PAGING, CODING, TILE_TOKENS, TILE_DIMS)
        _store_codebook(counts, table, lookups + LOOKUPS * (tl.load(plan + FIRST_SEGMENT) + segment), CODING.width)


@triton.jit
def _exponents(
    kv: tl.tensor,
    plan: tl.tensor,
    origin: tl.tensor,
    block_ids: tl.tensor,
    token: tl.tensor,
    PAGING: tl.constexpr,
    CODING: tl.constexpr,
    TILE_DIMS: tl.constexpr,
) -> tl.tensor:
    """Exponents of the segment's `token`s, int32 `[tokens, TILE_DIMS]`, and which of them there are."""
    dim = tl.arange(0, TILE_DIMS)
    held = token < tl.load(plan + NUM_TOKENS)
    place = tokens_at(kv, block_ids, token + tl.load(plan + FIRST_TOKEN).to(tl.int32), held, PAGING)[:, None]
    place += axis_offset(dim, PAGING.dim[0], PAGING.dim[1], PAGING.dim[2])[None, :]
    mask = held[:, None] & (dim < PAGING.head_dim)[None, :]
    bits = bits_of(tl.load(kv.memory + origin + place, mask=mask, other=0))
    return ((bits >> CODING.mantissa_bits) & ((1 << CODING.exponent_bits) - 1)).to(tl.int32), mask


@triton.jit
def _bases(
    kv: tl.tensor,
    plan: tl.tensor,
    origin: tl.tensor,
    block_ids: tl.tensor,
    PAGING: tl.constexpr,
    CODING: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_DIMS: tl.constexpr,
) -> tl.tensor:
    """Mean exponent of each dim over the sampled tokens, rounded down, or of all dims; int32 `[TILE_DIMS]`."""
    step, num_samples = _sampling(plan)
    sums = tl.full((TILE_DIMS,), 0, tl.int32)
    for start in range(0, num_samples, TILE_TOKENS):
        token = (start + tl.arange(0, TILE_TOKENS)) * step
        exponents, _ = _exponents(kv, plan, origin, block_ids, token, PAGING, CODING, TILE_DIMS)
        sums += total(exponents, 0)
    return sums // num_samples if CODING.per_channel else sums * 0 + total(sums, 0) // (num_samples * PAGING.head_dim)


@triton.jit
def _sampling(plan: tl.tensor) -> tl.tensor:
    """Every which token is sampled, and how many are."""
    num_tokens = tl.load(plan + NUM_TOKENS).to(tl.int32)
    step = ceil_div(num_tokens, SAMPLE_TOKENS)
    return step, ceil_div(num_tokens, step)


@triton.jit
def _counts(
    kv: tl.tensor,
    plan: tl.tensor,
    origin: tl.tensor,
    block_ids: tl.tensor,
    base: tl.tensor,
    PAGING: tl.constexpr,
    CODING: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_DIMS: tl.constexpr,
) -> tl.tensor:
    """How often each delta from -16 to 15 occurs in every fourth sampled token; int32 `[CANDIDATES]`."""
    step, num_samples = _sampling(plan)
    counts = tl.full((CANDIDATES,), 0, tl.int32)
    for start in range(0, ceil_div(num_samples, COUNT_EVERY), TILE_TOKENS):
        token = (start + tl.arange(0, TILE_TOKENS)) * COUNT_EVERY * step
        exponents, mask = _exponents(kv, plan, origin, block_ids, token, PAGING, CODING, TILE_DIMS)
        index = (exponents - base[None, :] + CANDIDATES // 2) & 255
        flat = tl.reshape(index, (TILE_TOKENS * TILE_DIMS,))
        counted = tl.reshape(mask & (index < CANDIDATES), (TILE_TOKENS * TILE_DIMS,))
        counts += tl.histogram(flat & (CANDIDATES - 1), CANDIDATES, mask=counted)
    return counts


@triton.jit
def _store_codebook(counts: tl.tensor, codebook: tl.tensor, lookup: tl.tensor, WIDTH: tl.constexpr) -> None:
    """The 16 most frequent deltas, the lower first among equals; and the lookup of all 32."""
    keys = counts * CANDIDATES + (CANDIDATES - 1 - tl.arange(0, CANDIDATES))
    rank = total((keys[None, :] > keys[:, None]).to(tl.int32), 1)
    candidate = tl.arange(0, CANDIDATES)
    tl.store(codebook + rank, (candidate - CANDIDATES // 2).to(tl.uint8), mask=rank < CODEBOOK_BYTES)
    if WIDTH == 2:
        for level in tl.static_range(4):
            code = tl.where((rank >= 3 * level) & (rank < 3 * level + 3), rank - 3 * level, 3)
            tl.store(lookup + level, total(code.to(tl.int64) << (2 * candidate).to(tl.int64), 0))
    else:
        shifted = tl.minimum(rank, 15).to(tl.int64) << (candidate % 16 * 4).to(tl.int64)
        tl.store(lookup, total(tl.where(candidate < 16, shifted, 0), 0))
        tl.store(lookup + 1, total(tl.where(candidate < 16, 0, shifted), 0))
