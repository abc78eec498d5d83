"""How vLLM's CPU attention packs K and V inside a block, found by watching its own cache writer.

The packing depends on the machine: plain vector units keep K as `[dim][token]`, AMX pairs its elements. So nothing is
written down here. The writer stores numbered tokens and dims in a scratch cache; the numbers show where each landed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.fit import fit_plane
from pdkv_connector.layout.region import PlaneMap

DIGIT = 8
"""Numbers are written one digit at a time: even fp8 e5m2 holds 0 .. 7 exactly."""

BLOCK, NUM_BLOCKS = 1, 3
"""The block written to, with a neighbour on each side that must stay as it was."""

FP8_DTYPES = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


@lru_cache(maxsize=64)
def probe_planes(
    dtype: torch.dtype, block_size: int, head_dim: int, isa: str = "", kv_cache_dtype: str = "auto"
) -> tuple[PlaneMap, PlaneMap]:
    """Planes of K and V in a block `[block_size, 2 * head_dim]` of `dtype` (the model's; the cache may be fp8).

    `isa` defaults to what vLLM picks on this machine. Raises LayoutError when no two-level map fits every element.
    """
    isa = isa or default_isa(dtype, block_size, head_dim, kv_cache_dtype)
    keys = _number(dtype, block_size, head_dim, isa, kv_cache_dtype)
    size = block_size * head_dim
    try:
        return _plane(keys[:size], 0, head_dim), _plane(keys[size:], size, head_dim)
    except LayoutError as error:
        raise LayoutError(
            f"vLLM CPU block of {block_size} tokens x {head_dim} dims of {dtype}, isa {isa!r}: {error}"
        ) from error


def default_isa(dtype: torch.dtype, block_size: int, head_dim: int, kv_cache_dtype: str = "auto") -> str:
    """The instruction set vLLM packs for on this machine."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    isa: str = _get_attn_isa(dtype, block_size, head_dim, kv_cache_dtype)
    return isa


def _number(dtype: torch.dtype, block_size: int, head_dim: int, isa: str, kv_cache_dtype: str) -> list[int]:
    """For each element of the block, in memory order, `token * head_dim + dim` of what was stored there."""
    numbers = torch.arange(block_size * head_dim).view(block_size, 1, head_dim)
    found = torch.zeros(2 * block_size * head_dim, dtype=torch.int64)
    weight = 1
    while weight < block_size * head_dim:
        digit = (numbers // weight) % DIGIT
        found += weight * _stored(digit.to(dtype), isa, kv_cache_dtype)
        weight *= DIGIT
    keys: list[int] = found.tolist()
    return keys


def _stored(values: torch.Tensor, isa: str, kv_cache_dtype: str) -> torch.Tensor:
    """The block as it lies in memory after vLLM wrote `values` `[tokens, 1, dims]` as both K and V."""
    from vllm import _custom_ops as ops

    block_size, _, head_dim = values.shape
    dtype = FP8_DTYPES.get(kv_cache_dtype, values.dtype)
    cache = torch.full((NUM_BLOCKS, 1, 2 * block_size, head_dim), -1.0).to(dtype)
    writable: Any = cache.view(torch.uint8) if kv_cache_dtype in FP8_DTYPES else cache
    key_cache, value_cache = writable.chunk(2, dim=2)
    slots = torch.arange(BLOCK * block_size, (BLOCK + 1) * block_size, dtype=torch.int64)
    ops.cpu_attn_reshape_and_cache(values, values, key_cache, value_cache, slots, isa, kv_cache_dtype=kv_cache_dtype)
    whole = cache.float().view(NUM_BLOCKS, -1).to(torch.int64)
    if (whole[[BLOCK - 1, BLOCK + 1]] != -1).any() or (whole[BLOCK] < 0).any():
        raise LayoutError("the cache writer did not fill exactly the block it was given")
    return whole[BLOCK]


def _plane(keys: list[int], base: int, head_dim: int) -> PlaneMap:
    """The map of one plane; `keys[i]` is the number stored at element `base + i`."""
    place = {key: base + offset for offset, key in enumerate(keys)}
    if len(place) != len(keys):
        raise LayoutError(f"the plane holds {len(place)} distinct elements of {len(keys)}")
    return fit_plane([[place[t + d] for d in range(head_dim)] for t in range(0, len(keys), head_dim)])
