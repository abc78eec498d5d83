"""An engine without its model: vLLM's own scheduler, both halves of the connector, real KV memory, metrics to scrape.

The forward pass writes the KV that the prompt is known to have, and looks first whether all that it attends to is
there: KV that is missing, of another request, or stale fails the step as wrong tokens would show it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from vllm.config import CacheConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from pdkv_connector.adapters.vllm.plugin import CONNECTOR, register
from pdkv_connector.adapters.vllm.stats_report import RankStats
from pdkv_connector.adapters.vllm.step_plan import RankEndpoint, StepPlan
from pdkv_connector.types import Span
from tests.cases.text import VOCABULARY, Text
from tests.unit.adapters.scrape import Scrape
from tests.unit.adapters.worker import Worker
from tests.unit.runtime.prompts import HEAD_DIM, NUM_HEADS, NUM_LAYERS
from tests.unit.runtime.rank import POOL_TOKENS, Blocks, Rank

SAMPLED = 7
"""The token that every forward pass samples."""
MAX_TOKENS = 512
CHUNK_TOKENS = 64
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
    "num_attention_heads": NUM_HEADS, "num_key_value_heads": NUM_HEADS, "num_hidden_layers": NUM_LAYERS,
    "vocab_size": VOCABULARY, "max_position_embeddings": MAX_TOKENS, "head_dim": HEAD_DIM, "torch_dtype": "bfloat16",
}  # fmt: skip


def kv_config(rank: Rank, num_blocks: int) -> KVCacheConfig:
    """The KV cache groups of a rank's layers."""
    shape = {"block_size": rank.block_size, "num_kv_heads": NUM_HEADS, "head_size": HEAD_DIM, "dtype": torch.bfloat16}
    groups = []
    for group, window in enumerate(rank.windows):
        names = [f"layer.{layer}" for layer in range(NUM_LAYERS) if rank.group_of_layer[layer] == group]
        spec = SlidingWindowSpec(**shape, sliding_window=window) if window else FullAttentionSpec(**shape)
        groups.append(KVCacheGroupSpec(names, spec))
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


def engine_config(folder: Path, role: str, engine_id: str, block_size: int, num_blocks: int) -> VllmConfig:
    """What vLLM's scheduler is told; `folder` holds the model's shape, and gets it when it does not."""
    (folder / "config.json").write_text(json.dumps(MODEL))
    cache_config = CacheConfig(block_size=block_size, enable_prefix_caching=True)
    cache_config.num_gpu_blocks = num_blocks
    transfer = KVTransferConfig(
        kv_connector=CONNECTOR, kv_role=role, engine_id=engine_id, kv_load_failure_policy="recompute"
    )
    return VllmConfig(
        model_config=ModelConfig(
            model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True, dtype="bfloat16", seed=0,
            max_model_len=MAX_TOKENS,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=8, max_num_batched_tokens=CHUNK_TOKENS, max_model_len=MAX_TOKENS, is_encoder_decoder=False,
            enable_chunked_prefill=True,
        ),
        cache_config=cache_config,
        kv_transfer_config=transfer,
    )  # fmt: skip


@cache
def _seed_hashes() -> None:
    """vLLM's block hashes start from a constant of the process."""
    init_none_hash(sha256)


class Chunk(NamedTuple):
    """What one request runs through the model in one step."""

    text: Text
    blocks: Blocks
    tokens: Span


class Engine:
    """`answers` holds each finished request's last output, `num_computed` the tokens it ran through the model; `loads`
    counts how fetching KV ended.
    """

    def __init__(
        self, folder: Path, role: str, layout: str = "nhd", block_size: int = 16, num_blocks: int = 0, **settings: Any
    ) -> None:
        register()
        _seed_hashes()
        self.worker = Worker(layout, block_size, **settings)
        num_blocks = num_blocks or POOL_TOKENS // block_size
        config = engine_config(folder, role, layout, block_size, num_blocks)
        self.scheduler = Scheduler(
            config, kv_config(self.worker.rank, num_blocks), StructuredOutputManager(config), block_size=block_size,
            log_stats=True,
        )  # fmt: skip
        assert self.scheduler.connector is not None
        endpoint = RankEndpoint(self.worker.rank.runtime.endpoint)
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware({(0, 0): endpoint})
        self._hasher = get_request_block_hasher(block_size, sha256)
        self.scrape, self._rank_stats = Scrape(role), RankStats()
        self.texts: dict[str, Text] = {}
        self.answers: dict[str, EngineCoreOutput] = {}
        self.num_computed: dict[str, int] = {}
        self.loads: Counter[str] = Counter()
        self.num_blocks = self.num_free

    @property
    def endpoint(self) -> str:
        return self.worker.rank.runtime.endpoint

    @property
    def num_free(self) -> int:
        """Blocks that no request holds."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def stop(self) -> None:
        self.worker.half.stop()

    # -- requests -----------------------------------------------------------------------------------------------------

    def add(self, text: Text, params: dict[str, Any] | None = None, name: str = "cmpl", **sampling: Any) -> str:
        """A request as the API server hands it over; returns the id that the engine gave it."""
        extra = {"kv_transfer_params": params} if params else None
        sampled = SamplingParams(**{"max_tokens": 1, "extra_args": extra, **sampling})
        request = EngineCoreRequest(
            request_id=name, prompt_token_ids=text.token_ids, mm_features=None, sampling_params=sampled,
            pooling_params=None, arrival_time=time.time(), lora_request=None, cache_salt=None, data_parallel_rank=None,
        )  # fmt: skip
        return self.admit(request, text)

    def admit(self, request: EngineCoreRequest, text: Text) -> str:
        InputProcessor.assign_request_id(request)
        made = Request.from_engine_core_request(request, self._hasher)
        self.texts[made.request_id] = text
        self.num_computed[made.request_id] = 0
        self.scheduler.add_request(made)
        if made.abort_immediately:
            self.abort(made.request_id)
        return str(made.request_id)

    def abort(self, request_id: str) -> None:
        """The client left."""
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def status(self, request_id: str) -> str:
        """The scheduler's own word for where a request is; `gone` when it knows it no more."""
        request = self.scheduler.requests.get(request_id)
        return request.status.name if request else "gone"

    def blocks_of(self, request_id: str) -> set[int]:
        """Blocks that a request holds in any group."""
        groups = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        return {block for group in groups for block in group} - {0}

    def use_free_blocks(self) -> None:
        """Fill every free block with other bytes, as requests would that get them next."""
        pool = self.scheduler.kv_cache_manager.block_pool
        taken = pool.get_new_blocks(self.num_free)
        block_ids = [block.block_id for block in taken]
        self.worker.rank.overwrite((block_ids,) * len(self.worker.rank.windows))
        pool.free_blocks(taken)

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One turn of the engine's loop: schedule, forward, update. An engine without requests does nothing."""
        if not self.scheduler.has_requests():
            return
        output = self.scheduler.schedule()
        plan = output.kv_connector_metadata
        assert isinstance(plan, StepPlan)
        self.worker.half.before_blocks_change(plan)
        self.worker.half.begin_step(plan)
        self._forward(output)
        self.worker.half.end_step()
        self._update(output)

    def _forward(self, output: SchedulerOutput) -> None:
        chunks = [self._chunk(request_id, num) for request_id, num in output.num_scheduled_tokens.items()]
        for layer in range(NUM_LAYERS):
            for chunk in chunks:
                self.worker.rank.fill(layer, chunk.blocks, chunk.text, chunk.tokens & Span(0, chunk.text.num_tokens))
            for chunk in chunks:  # a request may attend to what another one computes in the same step
                self._attend(layer, chunk)
            self.worker.half.save_layer(f"layer.{layer}")

    def _chunk(self, request_id: str, num_tokens: int) -> Chunk:
        stop = self.scheduler.requests[request_id].num_computed_tokens
        self.num_computed[request_id] += num_tokens
        blocks = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        return Chunk(self.texts[request_id], blocks, Span(stop - num_tokens, stop))

    def _attend(self, layer: int, chunk: Chunk) -> None:
        """Compare all KV of the prompt that the chunk's first token sees with what it must be."""
        rank = self.worker.rank
        start, window = chunk.tokens.start, rank.windows[rank.group_of_layer[layer]]
        seen = Span(max(0, start - window + 1) if window else 0, start) & Span(0, chunk.text.num_tokens)
        if seen:
            held = rank.elements(layer, chunk.blocks, seen)
            wrong = (held != chunk.text.kv(layer, seen)).any(axis=(0, 1, 3)).nonzero()[0]
            assert not len(wrong), f"token {start} attends to wrong KV of layer {layer}: tokens {wrong + seen.start}"

    def _update(self, output: SchedulerOutput) -> None:
        results = self.worker.half.results(KVConnectorTransferResults())
        ran = list(output.num_scheduled_tokens)
        self.loads["failed"] += len(results.failed_recving)
        self.loads["delivered"] += len(results.finished_recving - results.failed_recving)
        requests = [self.scheduler.requests[request_id] for request_id in ran]
        sampled = [[SAMPLED] if made.num_computed_tokens >= made.num_tokens else [] for made in requests]
        news = KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            kv_connector_worker_meta=self.worker.half.take_report(),
            kv_connector_stats=self._rank_stats.take(self.worker.rank.runtime),
        )
        ran_at = {request_id: index for index, request_id in enumerate(ran)}
        found = self.scheduler.update_from_output(
            output, ModelRunnerOutput(ran, ran_at, sampled, kv_connector_output=news)
        )
        for outputs in found.values():
            self.scrape.observe(outputs.scheduler_stats and outputs.scheduler_stats.kv_connector_stats)
            self.answers |= {each.request_id: each for each in outputs.outputs if each.finish_reason is not None}
