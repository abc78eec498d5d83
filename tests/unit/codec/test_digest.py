"""Digests agree across layouts and notice one bit."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.shapes import LAYOUTS, Shape, make_memory
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.codec.digest import CHUNK_TOKENS, layer_digests
from pdkv_connector.codec.raw import RawCodec
from pdkv_connector.types import Span

CODEC = RawCodec()
SHAPE = Shape(num_blocks=36, block_size=32, num_heads=2, head_dim=32)
TOKENS = Span(3, CHUNK_TOKENS + 40)


def copied(layout: str) -> tuple[KVMemory, list[list[int]]]:
    """The same KV of two layers in `layout`, in blocks of its own."""
    source = make_memory(tuple(LAYOUTS["nhd"](SHAPE, f"layer.{i}") for i in range(2)), 11)
    target = make_memory(tuple(LAYOUTS[layout](SHAPE, f"layer.{i}") for i in range(2)), None)
    table = list(range(36))
    part = SlabPart((0, 1), (table, table), TOKENS, Span(0, 2))
    payload = np.empty(CODEC.max_encoded_bytes(source, part), np.uint8)
    CODEC.encode(source, part, payload)
    tables = [table[::-1], table[5:] + table[:5]]
    CODEC.decode(target, SlabPart((0, 1), tuple(tables), TOKENS, Span(0, 2)), payload)
    return target, tables


def digests(memory: KVMemory, tables: list[list[int]]) -> list[str]:
    return layer_digests(memory, CODEC, (0, 1), tables, TOKENS, Span(0, 2))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_does_not_matter(layout: str) -> None:
    one, other = digests(*copied("nhd")), digests(*copied(layout))
    assert one == other
    assert one[0] != one[1]


def test_one_bit_changes_one_layer() -> None:
    memory, tables = copied("cpu_amx")
    before = digests(memory, tables)
    element = tables[1][4] * memory.regions[1].block_stride + 77
    memory.tensors[1][element] ^= 1
    after = digests(memory, tables)
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_a_bit_outside_the_range_changes_nothing() -> None:
    memory, tables = copied("hnd")
    before = digests(memory, tables)
    memory.tensors[0][tables[0][0] * memory.regions[0].block_stride] ^= 1
    assert digests(memory, tables) == before
