"""The raw codec against an element-by-element oracle, across layouts, and against damage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.shapes import LAYOUTS, Shape, cpu_amx, cpu_vec, element_offsets, hnd, make_memory, nhd, oracle_payload
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.codec.raw import RawCodec
from pdkv_connector.errors import LayoutError, ProtocolError
from pdkv_connector.types import Span
from tests.unit.codec.strategies import parts, shapes, slabs

CODEC = RawCodec()


def encode(memory: KVMemory, part: SlabPart) -> np.ndarray:
    out = np.empty(CODEC.max_encoded_bytes(memory, part), np.uint8)
    assert CODEC.encode(memory, part, out) == out.size
    return out


@pytest.mark.parametrize("layout", [*LAYOUTS, "mla"])
@given(data=st.data())
def test_payload_is_canonical(layout: str, data: st.DataObject) -> None:
    memory, part = data.draw(slabs(layout))
    assert encode(memory, part).tobytes() == oracle_payload(memory, part)


@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("target", LAYOUTS)
@settings(max_examples=20)
@given(data=st.data())
def test_gather_then_scatter_into_another_layout(source: str, target: str, data: st.DataObject) -> None:
    packed = "cpu_amx" in {source, target}
    shape = data.draw(shapes("cpu_amx" if packed else "nhd"))
    part = data.draw(parts(shape, 1))
    one, other = make_memory((LAYOUTS[source](shape),), 1), make_memory((LAYOUTS[target](shape),), None)
    elsewhere = replace(part, block_tables=(tuple(reversed(part.block_tables[0])),))
    before = other.tensors[0].copy()
    payload = encode(one, part)
    CODEC.decode(other, elsewhere, payload)
    assert encode(other, elsewhere).tobytes() == payload.tobytes()
    untouched = np.ones(before.size, bool)
    untouched[element_offsets(other.regions[0], elsewhere, 0).ravel()] = False
    assert (other.tensors[0] == before)[untouched].all()


@given(data=st.data())
def test_block_sizes_may_differ(data: st.DataObject) -> None:
    num_heads, head_dim, num_tokens = 2, 8, data.draw(st.integers(1, 96))
    sizes = [data.draw(st.sampled_from((1, 8, 16, 32, 48, 96))) for _ in "PD"]
    ends = []
    for build, size, seed in zip((cpu_vec, nhd), sizes, (3, None), strict=True):
        num_blocks = -(-num_tokens // size)
        memory = make_memory((build(Shape(num_blocks, size, num_heads, head_dim)),), seed)
        table = tuple(data.draw(st.permutations(range(num_blocks))))
        ends.append((memory, SlabPart((0,), (table,), Span(0, num_tokens), Span(0, num_heads))))
    payload = encode(*ends[0])
    CODEC.decode(*ends[1], payload)
    assert encode(*ends[1]).tobytes() == payload.tobytes()


def small(build: object = cpu_amx) -> tuple[KVMemory, SlabPart]:
    memory = make_memory((build(Shape(4, 32, 2, 32)),), 5)  # type: ignore[operator]
    return memory, SlabPart((0,), ((2, 0, 3),), Span(5, 70), Span(0, 2))


def test_one_corrupt_byte_is_seen() -> None:
    memory, part = small()
    payload = encode(memory, part)
    damaged = payload.copy()
    damaged[1234] ^= 1
    CODEC.decode(memory, part, damaged)
    assert encode(memory, part).tobytes() != payload.tobytes()
    assert (encode(memory, part) != payload).sum() == 1


def test_the_wrong_block_gives_other_bytes() -> None:
    memory, part = small()
    assert encode(memory, part).tobytes() != encode(memory, replace(part, block_tables=((2, 1, 3),))).tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_tables": ((2, 4, 3),)}, "entry 1 is block 4 of 4"),
        ({"block_tables": ((2, -1, 3),)}, r"entry 1 is a hole \(-1\)"),
        ({"block_tables": ((2, None, 3),)}, r"entry 1 is a hole \(None\)"),
        ({"block_tables": ((2, 0),)}, "token 69 lies past the block table, which holds 2 blocks of 32 tokens"),
        ({"tokens": Span(-1, 3)}, r"\[-1, 3\) starts below zero"),
        ({"heads": Span(1, 3)}, r"heads \[1, 3\) are outside its 2"),
        ({"layers": (1,)}, "layer index 1 is outside the 1 layers"),
        ({"block_tables": ()}, "0 block tables were given for 1 layers"),
    ],
)
def test_bad_parts_are_named(change: dict[str, object], message: str) -> None:
    memory, part = small()
    with pytest.raises(LayoutError, match=message):
        CODEC.encode(memory, replace(part, **change), np.empty(1 << 16, np.uint8))  # type: ignore[arg-type]


def test_holes_outside_the_range_are_fine() -> None:
    memory, part = small()
    windowed = replace(part, tokens=Span(33, 60))
    holed = replace(windowed, block_tables=((-1, 0, None),))  # type: ignore[arg-type]
    assert encode(memory, holed).tobytes() == encode(memory, windowed).tobytes()


def test_wrong_lengths_are_refused() -> None:
    memory, part = small()
    payload = encode(memory, part)
    with pytest.raises(ProtocolError, match=f"raw payload of {payload.size - 1} bytes, the slab takes {payload.size}"):
        CODEC.decode(memory, part, payload[:-1])
    with pytest.raises(LayoutError, match="does not fit a buffer"):
        CODEC.encode(memory, part, payload[:-1])


def test_a_region_larger_than_its_tensor_is_refused() -> None:
    memory, part = small(hnd)
    cut = KVMemory(memory.regions, (memory.tensors[0][:-1],))
    with pytest.raises(LayoutError, match="reaches element 16383, its tensor has 16383"):
        CODEC.encode(cut, part, np.empty(1 << 16, np.uint8))
