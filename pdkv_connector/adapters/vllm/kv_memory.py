"""Describes vLLM's KV tensors to the rest of the package: regions, flat views, and the facts of the handshake."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING

import torch
from vllm.distributed import get_pp_group, get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig, KVCacheSpec

from pdkv_connector.adapters.vllm import compat
from pdkv_connector.adapters.vllm.cpu_layout import probe_planes
from pdkv_connector.codec.base import KVMemory
from pdkv_connector.codec.registry import FACTORIES
from pdkv_connector.config import Config
from pdkv_connector.errors import EngineError
from pdkv_connector.layout.axes import extent
from pdkv_connector.layout.blocks import merge_kernel_blocks, packed_region, strided_region
from pdkv_connector.layout.region import Region
from pdkv_connector.layout.topology import kv_heads_of
from pdkv_connector.session.messages import Facts, LayerFact
from pdkv_connector.types import Span

if TYPE_CHECKING:
    from vllm.config import VllmConfig

NUM_PLANES = 2


def describe(kv_caches: Mapping[str, torch.Tensor], config: KVCacheConfig, cache_dtype: str) -> KVMemory:
    """Regions and flat views of every layer, in the engine's layer order. Raises EngineError or LayoutError."""
    specs = compat.layer_specs(config)
    missing = sorted(set(specs) - set(kv_caches))
    if missing:
        raise EngineError(f"vLLM registered no KV tensor for layer {missing[0]} ({len(missing)} in all)")
    regions, tensors = [], []
    for name in kv_caches:
        if name not in specs:
            continue
        region = _region(name, kv_caches[name], specs[name][1], cache_dtype)
        regions.append(region)
        tensors.append(_flat(kv_caches[name], extent(region)))
    return KVMemory(tuple(regions), tuple(tensors))


def _region(name: str, tensor: torch.Tensor, spec: KVCacheSpec, cache_dtype: str) -> Region:
    assert isinstance(spec, AttentionSpec)
    dtype = compat.TORCH_FP8.get(cache_dtype, str(tensor.dtype).removeprefix("torch."))
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if compat.is_mla(spec):
        axes = "BND" if tensor.ndim == 3 else "BHNC"
        region = strided_region(name, axes, shape, strides, dtype, spec.head_size)
    elif tensor.device.type == "cpu":
        model_dtype = torch.bfloat16 if cache_dtype in compat.TORCH_FP8 else tensor.dtype
        planes = probe_planes(model_dtype, shape[2], spec.head_size, kv_cache_dtype=cache_dtype)
        region = packed_region(name, shape, strides, dtype, planes)
    else:
        region = strided_region(name, "BHNC", shape, strides, dtype, spec.head_size)
    return merge_kernel_blocks(region, spec.block_size)


def _flat(tensor: torch.Tensor, num_elements: int) -> torch.Tensor:
    """A 1-D view over the tensor's memory from its first element on, gaps included."""
    return torch.as_strided(tensor, (num_elements,), (1,), tensor.storage_offset())


def facts_of(config: Config, vllm_config: VllmConfig, kv_config: KVCacheConfig, memory: KVMemory) -> Facts:
    """What this rank says of itself at the handshake."""
    specs = compat.layer_specs(kv_config)
    tp_rank, tp_size = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    num_kv_heads = 1 if _all_mla(specs) else int(vllm_config.model_config.get_total_num_kv_heads())
    heads = kv_heads_of(num_kv_heads, tp_rank, tp_size)
    return Facts(
        model=config.model_id or PurePath(vllm_config.model_config.model).name,
        model_digest=compat.model_digest(vllm_config),
        num_kv_heads=num_kv_heads,
        tp_rank=tp_rank,
        tp_size=tp_size,
        pp_rank=get_pp_group().rank_in_group,
        pp_size=get_pp_group().world_size,
        codecs=tuple(FACTORIES),
        layers=tuple(_layer_fact(region, specs[region.name][1], heads) for region in memory.regions),
    )


def _all_mla(specs: Mapping[str, tuple[int, KVCacheSpec]]) -> bool:
    return all(compat.is_mla(spec) for _, spec in specs.values())


def _layer_fact(region: Region, spec: KVCacheSpec, heads: Span) -> LayerFact:
    if region.num_heads != len(heads):
        raise EngineError(
            f"layer {region.name} holds {region.num_heads} KV heads on this rank, {len(heads)} were expected: "
            "layers with different head counts are not supported"
        )
    return LayerFact(region.name, len(region.planes), heads, region.head_dim, region.dtype, compat.window_of(spec))


def groups_of(kv_config: KVCacheConfig, memory: KVMemory) -> tuple[int, ...]:
    """KV cache group of each region."""
    specs = compat.layer_specs(kv_config)
    return tuple(specs[region.name][0] for region in memory.regions)
