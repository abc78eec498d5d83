"""Whole requests between engines of different TP size, layout and block size: layout rules and codec together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.shapes import LAYOUTS, Shape, make_memory, oracle_payload
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.codec.raw import RawCodec
from pdkv_connector.layout.topology import feeds, kv_heads_of
from pdkv_connector.layout.window import needed_tokens
from pdkv_connector.session.messages import Want
from pdkv_connector.session.slab_queue import SlabQueue
from pdkv_connector.types import Span

HEAD_DIM, NUM_LAYERS = 32, 3
SENTINEL = 0xA5A5
CODEC = RawCodec()


@dataclass
class Rank:
    """One tensor-parallel rank: its KV of one request, the block tables, the global heads it holds."""

    memory: KVMemory
    tables: tuple[list[int], ...]
    heads: Span

    def part(self, layers: Span, tokens: Span, global_heads: Span) -> SlabPart:
        local = Span(global_heads.start - self.heads.start, global_heads.stop - self.heads.start)
        return SlabPart(tuple(layers), tuple(self.tables[layer] for layer in layers), tokens, local)

    def read(self, layer: int, tokens: Span, global_heads: Span) -> bytes:
        return oracle_payload(self.memory, self.part(Span(layer, layer + 1), tokens, global_heads))


@dataclass(frozen=True)
class Engine:
    """What may differ between the two sides."""

    layout: str
    block_size: int
    tp_size: int

    def ranks(self, num_heads: int, num_tokens: int) -> list[Rank]:
        return [self._rank(num_heads, num_tokens, rank) for rank in range(self.tp_size)]

    def _rank(self, num_heads: int, num_tokens: int, rank: int) -> Rank:
        heads = kv_heads_of(num_heads, rank, self.tp_size)
        num_blocks = -(-num_tokens // self.block_size) + 1
        shape = Shape(num_blocks, self.block_size, len(heads), HEAD_DIM)
        memory = make_memory(tuple(LAYOUTS[self.layout](shape, f"layer.{i}") for i in range(NUM_LAYERS)), None)
        shuffle = np.random.default_rng(rank).permutation
        return Rank(memory, tuple(shuffle(num_blocks).tolist() for _ in range(NUM_LAYERS)), heads)


def fill(ranks: list[Rank], truth: np.ndarray) -> None:
    """Give every rank its heads of `truth`, `[layer][plane][head][token][dim]`."""
    for rank in ranks:
        mine = np.ascontiguousarray(truth[:, :, rank.heads.start : rank.heads.stop])
        part = rank.part(Span(0, NUM_LAYERS), Span(0, truth.shape[3]), rank.heads)
        CODEC.decode(rank.memory, part, mine.view(np.uint8).ravel())


def transfer(producers: list[Rank], consumers: list[Rank], num_heads: int, tokens: Span, slot_bytes: int) -> None:
    """Move `tokens` of every layer slab by slab, each through a slot of `slot_bytes`."""
    slot = np.zeros(slot_bytes, np.uint8)
    for index, consumer in enumerate(consumers):
        for feed in feeds(num_heads, len(producers), index, len(consumers)):
            producer = producers[feed.producer_rank]
            heads = feed.global_heads
            sizes = tuple(region.bytes_per_token_head for region in producer.memory.regions)
            queue = SlabQueue((Want(tuple(range(NUM_LAYERS)), tokens, heads),), sizes, slot_bytes)
            for layer in range(NUM_LAYERS):
                queue.ready(layer, tokens)
            while piece := queue.pop(slot_bytes):
                size = CODEC.encode(producer.memory, producer.part(piece.layers, piece.tokens, heads), slot)
                CODEC.decode(consumer.memory, consumer.part(piece.layers, piece.tokens, heads), slot[:size])


@st.composite
def engines(draw: st.DrawFn, num_heads: int) -> Engine:
    layout = draw(st.sampled_from(list(LAYOUTS)))
    sizes = (32, 64) if layout == "cpu_amx" else (1, 16, 32, 48)
    tp_size = draw(st.sampled_from((1, 2, 3, 4, 6, 8)))
    assume(max(num_heads, tp_size) % min(num_heads, tp_size) == 0)
    return Engine(layout, draw(st.sampled_from(sizes)), tp_size)


@pytest.mark.parametrize("num_heads", [1, 2, 4, 6])
@settings(max_examples=40)
@given(data=st.data())
def test_every_consumer_rank_holds_exactly_what_it_needs(num_heads: int, data: st.DataObject) -> None:
    stop = data.draw(st.integers(1, 120), label="stop")
    window = data.draw(st.sampled_from((0, 1, 17, 64)), label="window")
    wanted = needed_tokens(stop, data.draw(st.integers(0, stop), label="hit"), window)
    one, other = (data.draw(engines(num_heads), label=side) for side in ("producer", "consumer"))
    truth = np.random.default_rng(5).integers(0, SENTINEL, (NUM_LAYERS, 2, num_heads, stop, HEAD_DIM), np.uint16)
    producers, consumers = one.ranks(num_heads, stop), other.ranks(num_heads, stop)
    fill(producers, truth)
    transfer(producers, consumers, num_heads, wanted, data.draw(st.sampled_from((4096, 65536)), label="slot_bytes"))
    for rank in consumers:
        for layer in range(NUM_LAYERS):
            mine = truth[layer, :, rank.heads.start : rank.heads.stop, wanted.start : wanted.stop]
            assert rank.read(layer, wanted, rank.heads) == mine.tobytes()
            assert untouched_elements(rank, layer) == rank.memory.tensors[layer].size - mine.size


def test_heads_from_the_wrong_rank_are_seen() -> None:
    truth = np.random.default_rng(6).integers(0, SENTINEL, (NUM_LAYERS, 2, 4, 40, HEAD_DIM), np.uint16)
    producers, consumers = Engine("nhd", 16, 2).ranks(4, 40), Engine("cpu_amx", 32, 1).ranks(4, 40)
    fill(producers, truth)
    transfer(producers, consumers, 4, Span(0, 40), 65536)
    right = consumers[0].read(0, Span(0, 40), Span(0, 4))
    producers[0].memory, producers[1].memory = producers[1].memory, producers[0].memory
    transfer(producers, consumers, 4, Span(0, 40), 65536)
    assert right == truth[0].tobytes() != consumers[0].read(0, Span(0, 40), Span(0, 4))


def untouched_elements(rank: Rank, layer: int) -> int:
    """Elements that still hold the sentinel; all of the truth lies below it."""
    return int((rank.memory.tensors[layer] == SENTINEL).sum())
