"""KV geometries for tests and benchmarks: one table of layouts, memory to match, and a plain oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.layout.axes import extent
from pdkv_connector.layout.blocks import packed_region, strided_region
from pdkv_connector.layout.copy_plan import plan_runs
from pdkv_connector.layout.region import AxisMap, PlaneMap, Region

AMX_TILE = 32
"""Block sizes and head dims of the AMX layout are multiples of this."""


@dataclass(frozen=True)
class Shape:
    """One layer's paged KV, before a layout is chosen."""

    num_blocks: int
    block_size: int
    num_heads: int
    head_dim: int
    dtype: str = "bfloat16"


def nhd(shape: Shape, name: str = "layer") -> Region:
    """LBNHC of vLLM: a token's heads side by side, K and V of a head side by side."""
    b, n, h, c = shape.num_blocks, shape.block_size, shape.num_heads, 2 * shape.head_dim
    return strided_region(name, "BHNC", (b, h, n, c), (n * h * c, c, h * c, 1), shape.dtype, shape.head_dim)


def hnd(shape: Shape, name: str = "layer") -> Region:
    """LBHNC of vLLM on a GPU: a head's tokens side by side."""
    b, n, h, c = shape.num_blocks, shape.block_size, shape.num_heads, 2 * shape.head_dim
    return strided_region(name, "BHNC", (b, h, n, c), (h * n * c, n * c, c, 1), shape.dtype, shape.head_dim)


def planes_first(shape: Shape, name: str = "layer") -> Region:
    """Older engines: all K blocks, then all V blocks, token-major."""
    b, n, h, d = shape.num_blocks, shape.block_size, shape.num_heads, shape.head_dim
    strides = (b * n * h * d, n * h * d, h * d, d, 1)
    return strided_region(name, "PBNHD", (2, b, n, h, d), strides, shape.dtype, d)


def mla(shape: Shape, name: str = "layer") -> Region:
    """One latent per token, no heads and no V."""
    b, n, d = shape.num_blocks, shape.block_size, shape.head_dim
    return strided_region(name, "BND", (b, n, d), (n * d, d, 1), shape.dtype, d)


def cpu_vec(shape: Shape, name: str = "layer") -> Region:
    """CPU blocks of vLLM, vector units, every dtype: K is `[dim][token]`, V is `[token][dim]`."""
    n, d = shape.block_size, shape.head_dim
    k = PlaneMap(0, AxisMap(1, 1, 0), AxisMap(1, n, 0))
    v = PlaneMap(n * d, AxisMap(1, d, 0), AxisMap(1, 1, 0))
    return _packed(shape, name, (k, v))


def cpu_amx(shape: Shape, name: str = "layer") -> Region:
    """CPU blocks of vLLM, AMX matrix units, bf16: dims of K in pairs, tokens of V in pairs."""
    n, d = shape.block_size, shape.head_dim
    k = PlaneMap(0, AxisMap(16, 16 * d, 2), AxisMap(2, 32, 1))
    v = PlaneMap(n * d, AxisMap(2, 32, 1), AxisMap(16, 16 * n, 2))
    return _packed(shape, name, (k, v))


LAYOUTS = {"nhd": nhd, "hnd": hnd, "planes_first": planes_first, "cpu_vec": cpu_vec, "cpu_amx": cpu_amx}
"""Layouts with two planes; `mla` stands apart, having one."""


def _packed(shape: Shape, name: str, planes: tuple[PlaneMap, ...]) -> Region:
    b, n, h, c = shape.num_blocks, shape.block_size, shape.num_heads, 2 * shape.head_dim
    return packed_region(name, (b, h, n, c), (h * n * c, n * c, c, 1), shape.dtype, planes)


def make_memory(regions: tuple[Region, ...], seed: int | None) -> KVMemory:
    """Memory that just holds `regions`: random bytes, or the byte 0xA5 throughout when `seed` is None."""
    rng = np.random.default_rng(seed)
    tensors = []
    for region in regions:
        num_bytes = extent(region) * region.elem_bytes
        data = np.full(num_bytes, 0xA5, np.uint8) if seed is None else rng.integers(0, 256, num_bytes, np.uint8)
        tensors.append(data.view(f"u{region.elem_bytes}"))
    return KVMemory(regions, tuple(tensors))


def element_offsets(region: Region, part: SlabPart, position: int) -> NDArray[np.int64]:
    """Element offset of each `[plane][head][token][dim]` of one layer of `part`, straight from the maps."""
    runs = plan_runs(region, part.block_tables[position], part.tokens)
    blocks = np.array([run.block_id for run in runs for _ in range(run.num_tokens)], np.int64)
    inside = np.array([run.block_token + i for run in runs for i in range(run.num_tokens)], np.int64)
    heads = np.arange(part.heads.start, part.heads.stop)[:, None, None] * region.head_stride
    planes = []
    for plane in region.planes:
        token = _offsets(plane.token, inside) + blocks * region.block_stride
        dim = _offsets(plane.dim, np.arange(region.head_dim))
        planes.append(plane.base + heads + token[:, None] + dim)
    return np.stack(planes)


def _offsets(axis: AxisMap, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    return indices // axis.factor * axis.outer_stride + indices % axis.factor * axis.inner_stride


def oracle_payload(memory: KVMemory, part: SlabPart) -> bytes:
    """What the raw codec must produce for `part`, one element at a time."""
    layers = [
        memory.tensors[layer][element_offsets(memory.regions[layer], part, position)]
        for position, layer in enumerate(part.layers)
    ]
    return b"".join(np.ascontiguousarray(layer).tobytes() for layer in layers)


def to_torch(array: NDArray[Any], dtype: str) -> Any:
    """The same memory as a CPU torch tensor of `dtype`."""
    import torch

    return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, dtype))
