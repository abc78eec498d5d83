"""One rank of an engine without the engine: a runtime, real KV memory, and a block allocator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np

from benchmarks.shapes import LAYOUTS, Shape, element_offsets, make_memory
from pdkv_connector.codec.base import SlabPart
from pdkv_connector.codec.raw import RawCodec
from pdkv_connector.config import Config
from pdkv_connector.runtime import runtime as runtime_module
from pdkv_connector.runtime.results import Outcome
from pdkv_connector.runtime.ring_buffer import RingBuffer
from pdkv_connector.runtime.runtime import Runtime
from pdkv_connector.session.messages import Facts, LayerFact
from pdkv_connector.transport.base import Transport
from pdkv_connector.transport.loopback import LoopbackTransport
from pdkv_connector.types import Span
from tests.unit.runtime.prompts import GROUP_OF_LAYER, HEAD_DIM, NUM_HEADS, NUM_LAYERS, SENTINEL, WINDOWS, Prompt

PATIENCE_S = 40.0
POOL_TOKENS = 2048
CODEC = RawCodec()
EVERY_HEAD = Span(0, NUM_HEADS)
Blocks = tuple[list[int], ...]

SETTINGS: dict[str, object] = {
    "transport": "loopback",
    "slot_bytes": 4096,
    "ring_bytes": 16 * 4096,
    "window_slots": 4,
    "retry_s": 0.1,
    "resend_s": 0.1,
    "heartbeat_s": 0.1,
    "poll_idle_s": 0.005,
}


def groups_of(windows: Sequence[int]) -> tuple[int, ...]:
    """The KV cache group of each layer of a model with these."""
    return tuple(min(group, len(windows) - 1) for group in GROUP_OF_LAYER)


def toy_facts(windows: Sequence[int] = WINDOWS, /, **changes: object) -> Facts:
    """What every rank says of itself, unless a test makes it differ."""
    layers = tuple(
        LayerFact(f"layer.{index}", 2, EVERY_HEAD, HEAD_DIM, "bfloat16", windows[group])
        for index, group in enumerate(groups_of(windows))
    )
    facts = {
        "model": "toy", "model_digest": "d", "num_kv_heads": NUM_HEADS, "tp_rank": 0, "tp_size": 1, "pp_rank": 0,
        "pp_size": 1, "codecs": ("raw",), "layers": layers,
    }  # fmt: skip
    return Facts(**{**facts, **changes})  # type: ignore[arg-type]


class Rank:
    """`settings` override `SETTINGS`; the transport is loopback unless one is given."""

    def __init__(
        self,
        layout: str = "nhd",
        block_size: int = 16,
        facts: Facts | None = None,
        transport: Transport | None = None,
        windows: Sequence[int] = WINDOWS,
        **settings: object,
    ) -> None:
        self.windows, self.group_of_layer = windows, groups_of(windows)
        num_blocks = POOL_TOKENS // block_size
        shape = Shape(num_blocks, block_size, NUM_HEADS, HEAD_DIM)
        self.block_size = block_size
        self.memory = make_memory(tuple(LAYOUTS[layout](shape, f"layer.{i}") for i in range(NUM_LAYERS)), None)
        self.outcome = Outcome()
        shuffled = np.random.default_rng(block_size).permutation
        self._free = [shuffled(num_blocks).tolist() for _ in windows]
        config = Config.from_sources({**SETTINGS, **settings}, {})
        opened = transport or LoopbackTransport()
        with mock.patch.object(runtime_module, "open_transport", return_value=opened):
            self.runtime = Runtime(config, layout, facts or toy_facts(windows), self.memory, self.group_of_layer)
        self.num_slabs = self.num_bytes = 0
        self._count_scattered()
        self.runtime.start()

    def _count_scattered(self) -> None:
        mover = self.runtime.mover
        scatter = mover.decode

        def counted(codec: str, part: SlabPart, ring: RingBuffer, slot: int, num_bytes: int, checksum: int) -> None:
            scatter(codec, part, ring, slot, num_bytes, checksum)
            self.num_slabs += 1
            self.num_bytes += num_bytes

        mover.decode = counted  # type: ignore[method-assign]

    # -- blocks -------------------------------------------------------------------------------------------------------

    def allocate(self, num_tokens: int, num_held: int = 0) -> Blocks:
        """New blocks of every group for a request that grows to `num_tokens` and holds `num_held` blocks of each."""
        num_new = -(-num_tokens // self.block_size) - num_held
        return tuple([free.pop() for _ in range(num_new)] for free in self._free)

    def part(self, layer: int, blocks: Blocks, tokens: Span) -> SlabPart:
        return SlabPart((layer,), (blocks[self.group_of_layer[layer]],), tokens, EVERY_HEAD)

    def fill(self, layer: int, blocks: Blocks, prompt: Prompt, tokens: Span) -> None:
        """Write a prompt's KV, as a forward pass does."""
        CODEC.decode(self.memory, self.part(layer, blocks, tokens), prompt.kv(layer, tokens).view(np.uint8).ravel())

    def overwrite(self, blocks: Blocks) -> None:
        """Fill whole blocks with other bytes, as the next request would."""
        for layer, group in enumerate(self.group_of_layer):
            tokens = Span(0, len(blocks[group]) * self.block_size)
            offsets = element_offsets(self.memory.regions[layer], self.part(layer, blocks, tokens), 0)
            self.memory.tensors[layer][offsets] = 0x5A5A

    def elements(self, layer: int, blocks: Blocks, tokens: Span) -> np.ndarray:
        """KV as it lies in the blocks, in wire order `[plane][head][token][dim]`."""
        offsets = element_offsets(self.memory.regions[layer], self.part(layer, blocks, tokens), 0)
        found: np.ndarray = self.memory.tensors[layer][offsets]
        return found

    def num_changed(self, layer: int) -> int:
        """Elements of a layer that no longer hold the sentinel."""
        return int((self.memory.tensors[layer] != SENTINEL).sum())

    # -- outcomes -----------------------------------------------------------------------------------------------------

    def take(self) -> Outcome:
        """All outcomes so far."""
        if news := self.runtime.take():
            self.outcome.released |= news.released
            self.outcome.delivered |= news.delivered
            self.outcome.failed |= news.failed
            self.outcome.digests |= news.digests
        return self.outcome

    def wait_delivered(self, *prompts: Prompt) -> None:
        wanted = {prompt.transfer_id for prompt in prompts}
        wait_until(lambda: wanted <= self.take().delivered or bool(self.outcome.failed), f"delivery of {wanted}")
        assert not self.outcome.failed

    def wait_released(self, *prompts: Prompt) -> None:
        wanted = {prompt.transfer_id for prompt in prompts}
        wait_until(lambda: wanted <= self.take().released, f"release of {wanted}")

    def wait_failed(self, prompt: Prompt) -> str:
        """The reason, once the transfer has failed."""
        wait_until(lambda: prompt.transfer_id in self.take().failed, f"failure of {prompt.transfer_id}")
        return self.outcome.failed[prompt.transfer_id]

    def wait_slabs(self, at_least: int) -> None:
        """Some slabs have been scattered, more are to come."""
        wait_until(lambda: self.num_slabs >= at_least, f"{at_least} slabs")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, f"no {what} within {PATIENCE_S:g} s"
        time.sleep(0.002)


def chunks(num_tokens: int, size: int) -> Sequence[Span]:
    """A prompt's prefill steps."""
    return [Span(start, min(start + size, num_tokens)) for start in range(0, num_tokens, size)]
