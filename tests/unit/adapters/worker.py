"""A worker half over the runtime of a rank: an engine's worker without its engine."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults

from pdkv_connector.adapters.vllm.step_plan import Offer, Receive, StepPlan
from pdkv_connector.adapters.vllm.worker_half import WorkerHalf
from pdkv_connector.codec.base import KVMemory
from pdkv_connector.layout.window import needed_tokens
from tests.unit.adapters.engine_objects import kv_config, vllm_config
from tests.unit.runtime.prompts import NUM_LAYERS, WINDOWS, Prompt
from tests.unit.runtime.rank import Blocks, Rank


class Worker:
    """A WorkerHalf whose runtime moves the KV of a `Rank`."""

    def __init__(self, layout: str, block_size: int, **settings: Any) -> None:
        self.rank = Rank(layout, block_size, **settings)
        runtime = self.rank.runtime
        runtime.memory = KVMemory(
            self.rank.memory.regions, tuple(torch.from_numpy(tensor) for tensor in self.rank.memory.tensors)
        )
        self.half = WorkerHalf(vllm_config("kv_both"), kv_config())
        self.half._runtime = runtime
        self.half._layer_index = {f"layer.{index}": index for index in range(NUM_LAYERS)}
        self.half._groups = self.rank.group_of_layer
        self.found = KVConnectorTransferResults()

    def step(self, plan: StepPlan, prompt: Prompt | None = None, blocks: Blocks = (), hooks: bool = True) -> None:
        """One engine step; the forward pass computes what `plan` says of `prompt`."""
        self.half.before_blocks_change(plan)
        self.half.begin_step(plan)
        for layer in range(NUM_LAYERS):
            for send in plan.sends:
                assert prompt is not None
                self.rank.fill(layer, blocks, prompt, send.computed)
            if hooks:
                self.half.save_layer(f"layer.{layer}")
                self.half.save_layer(f"reader of layer.{layer}")
        self.half.end_step()

    def results(self) -> KVConnectorTransferResults:
        self.found = self.half.results(self.found)
        return self.found


def receive(prompt: Prompt, producer: Worker, blocks: Blocks, digest: bool = False) -> Receive:
    needs = tuple(needed_tokens(prompt.num_tokens - 1, 0, window) for window in WINDOWS)
    where = (producer.rank.runtime.endpoint,)
    return Receive(prompt.transfer_id, "d", "", where, 1, prompt.num_tokens, prompt.digest, needs, blocks, digest)


def offer(prompt: Prompt) -> Offer:
    return Offer(prompt.transfer_id, "p", prompt.num_tokens, prompt.digest)
