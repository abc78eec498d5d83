"""vLLM's requests and scheduling steps, as its scheduler would hand them over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import KVTransferConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request, RequestStatus

BLOCK_SIZE = 16
WINDOW = 32


def request(
    request_id: str = "r", num_tokens: int = 40, params: dict[str, Any] | None = None, status: str = "RUNNING"
) -> Request:
    """A request of `num_tokens` prompt tokens."""
    sampling = SamplingParams(max_tokens=200, extra_args={"kv_transfer_params": params} if params else None)
    made = Request(request_id, list(range(num_tokens)), sampling, None)
    made.status = RequestStatus[status]
    return made


def ended(made: Request, status: str, num_computed: int) -> Request:
    """The request, finished as `status` after `num_computed` tokens."""
    made.status, made.num_computed_tokens = RequestStatus[status], num_computed
    return made


def idle_step() -> SchedulerOutput:
    """A step that schedules nothing."""
    return SchedulerOutput.make_empty()


def first_step(made: Request, num_computed: int, num_scheduled: int, *groups: list[int]) -> SchedulerOutput:
    """The step in which a request runs for the first time, with its blocks by group."""
    made.num_computed_tokens = num_computed
    output = idle_step()
    output.scheduled_new_reqs = [NewRequestData.from_request(made, groups)]
    output.num_scheduled_tokens = {made.request_id: num_scheduled}
    return output


def next_step(
    made: Request, num_computed: int, num_scheduled: int, *groups: list[int], resumed: bool = False
) -> SchedulerOutput:
    """A later step, with its new blocks by group; none given: it needed none."""
    output = idle_step()
    output.scheduled_cached_reqs = CachedRequestData(
        req_ids=[made.request_id],
        resumed_req_ids={made.request_id} if resumed else set(),
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=[groups or None],
        num_computed_tokens=[num_computed],
        num_output_tokens=[0],
    )
    output.num_scheduled_tokens = {made.request_id: num_scheduled}
    return output


def blocks(*groups: list[int]) -> KVCacheBlocks:
    """An allocation."""
    return KVCacheBlocks(tuple([KVCacheBlock(block_id) for block_id in group] for group in groups))


def kv_config(num_blocks: int = 64) -> KVCacheConfig:
    """One full-attention group and one with a sliding window."""
    shape = {"block_size": BLOCK_SIZE, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
    groups = [
        KVCacheGroupSpec(["layer.0"], FullAttentionSpec(**shape)),
        KVCacheGroupSpec(["layer.1"], SlidingWindowSpec(**shape, sliding_window=WINDOW)),
    ]
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


def vllm_config(role: str, tp_size: int = 1, dp_index: int = 0, **extra: Any) -> Any:
    """As much of a VllmConfig as both halves read before there are KV tensors."""
    transfer = KVTransferConfig(
        kv_connector="PDKVConnector", kv_role=role, engine_id="engine-1", kv_connector_extra_config=extra
    )
    parallel = SimpleNamespace(tensor_parallel_size=tp_size, pipeline_parallel_size=1, data_parallel_index=dp_index)
    return SimpleNamespace(kv_transfer_config=transfer, parallel_config=parallel)
