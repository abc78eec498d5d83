"""Cascade kernels against the host codec, byte for byte: in Triton's interpreter, or on a GPU if told so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.shapes import LAYOUTS, Shape, hnd, make_memory, mla, nhd, planes_first
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.codec.coded import CascadeCodec
from pdkv_connector.errors import LayoutError, SlabTooLarge
from pdkv_connector.types import Span
from tests.kernels.scenes import DEVICE, SPECIAL, contents, fill, on_torch, scene

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from pdkv_connector.codec.cascade_triton import TritonCascadeCodec  # noqa: E402

WIDTHS = {"split": 2, "pack4": 4}
HOST = {name: CascadeCodec(name, width) for name, width in WIDTHS.items()}

# Codec, layout, shape, tokens, heads: whole and partial engine blocks, head slices, last blocks that are short.
LAYOUT_CASES = [
    ("split", nhd, Shape(5, 16, 3, 64), Span(5, 75), Span(1, 2)),
    ("pack4", nhd, Shape(5, 16, 3, 64), Span(5, 75), Span(1, 2)),
    ("split", hnd, Shape(5, 16, 2, 128), Span(8, 72), Span(0, 1)),
    ("pack4", planes_first, Shape(3, 32, 2, 96), Span(31, 96), Span(1, 2)),
    ("split", LAYOUTS["cpu_vec"], Shape(5, 16, 2, 80), Span(3, 60), Span(0, 2)),
    ("split", LAYOUTS["cpu_amx"], Shape(3, 32, 2, 64), Span(9, 70), Span(1, 2)),
    ("split", mla, Shape(4, 16, 1, 576), Span(7, 40), Span(0, 1)),
    ("pack4", mla, Shape(4, 16, 1, 576), Span(7, 40), Span(0, 1)),
    ("split", nhd, Shape(4, 16, 2, 64), Span(3, 30), Span(0, 2)),
    ("split", nhd, Shape(70, 1, 1, 63), Span(2, 68), Span(0, 1)),
]


def host_payload(name: str, memory: KVMemory, part: SlabPart) -> bytes:
    out = np.empty(HOST[name].max_encoded_bytes(memory, part), np.uint8)
    return out[: HOST[name].encode(memory, part, out)].tobytes()


def kernel_payload(codec: TritonCascadeCodec, memory: KVMemory, part: SlabPart) -> bytes:
    """What the kernels make of it; bytes past it in the buffer stay as they were."""
    size = codec.max_encoded_bytes(memory, part)
    out = torch.full((size + 16,), 0xA5, dtype=torch.uint8, device=DEVICE)
    num_bytes = codec.encode(on_torch(memory), part, out[:size])
    assert (out[size:] == 0xA5).all()
    return bytes(out[:num_bytes].cpu().numpy())


def as_payload(data: bytes) -> Any:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(DEVICE)


def check(codec: TritonCascadeCodec, memory: KVMemory, part: SlabPart) -> bytes:
    """Equal streams, and equal memory from them: the slab's elements written, every other one left alone."""
    payload = host_payload(codec.name, memory, part)
    assert kernel_payload(codec, memory, part) == payload
    by_host = make_memory(memory.regions, None)
    by_kernel = on_torch(make_memory(memory.regions, None))
    HOST[codec.name].decode(by_host, part, np.frombuffer(payload, np.uint8))
    codec.decode(by_kernel, part, as_payload(payload))
    assert contents(by_kernel) == contents(by_host)
    return payload


@pytest.mark.parametrize(("name", "build", "shape", "tokens", "heads"), LAYOUT_CASES)
def test_layouts(name: str, build: Any, shape: Shape, tokens: Span, heads: Span) -> None:
    memory, part = scene(build, shape, tokens, heads, seed=1)
    fill(memory, part, "rare")
    payload = check(TritonCascadeCodec(name, WIDTHS[name]), memory, part)
    assert len(payload) < HOST[name].max_encoded_bytes(memory, part)


def test_one_bit_makes_another_stream() -> None:
    memory, part = scene(nhd, Shape(3, 16, 1, 64), Span(0, 40), Span(0, 1), seed=1)
    fill(memory, part, "kv")
    codec = TritonCascadeCodec("split", 2)
    payload = kernel_payload(codec, memory, part)
    memory.tensors[1][part.block_tables[1][2] * memory.regions[1].block_stride] ^= 1
    assert kernel_payload(codec, memory, part) != payload
    assert kernel_payload(codec, memory, part) == host_payload("split", memory, part)


@pytest.mark.parametrize("kind", ["rare", "special", "zero", "random", "mixed"])
@pytest.mark.parametrize("dtype", sorted(SPECIAL))
def test_dtypes_and_contents(dtype: str, kind: str) -> None:
    for name in sorted(WIDTHS) if kind in ("rare", "mixed") else ["split"]:
        memory, part = scene(nhd, Shape(4, 16, 1, 80, dtype), Span(3, 60), Span(0, 1), seed=1)
        fill(memory, part, kind)
        total = HOST[name].max_encoded_bytes(memory, part)
        # three programs fill some slots before the slot in front: what runs over into its neighbour shows
        payload = check(TritonCascadeCodec(name, WIDTHS[name], 3), memory, part)
        assert len(payload) == total or kind != "random"
        assert (len(payload) < total // 10) == (kind == "zero")
        assert len(payload) < total or kind not in ("mixed", "rare") or dtype == "float8_e4m3fn"


def test_all_bfloat16_patterns() -> None:
    """Every pattern there is, many of them in no codebook."""
    memory, part = scene(hnd, Shape(4, 64, 1, 128), Span(0, 256), Span(0, 1), seed=1)
    memory.tensors[0][:] = np.arange(65536, dtype=np.uint16)
    memory.tensors[1][:] = np.arange(65536, dtype=np.uint16)[::-1] // 7 + 0x3F80
    check(TritonCascadeCodec("split", 2), memory, SlabPart((0,), part.block_tables[:1], Span(5, 250), Span(0, 1)))
    check(TritonCascadeCodec("pack4", 4), memory, SlabPart((1,), part.block_tables[:1], Span(5, 250), Span(0, 1)))


@st.composite
def slabs(draw: st.DrawFn) -> tuple[KVMemory, SlabPart]:
    """One to three layers of any dtypes, dims and layouts, at most some 50,000 elements."""
    num_heads, block_size = draw(st.integers(1, 2)), draw(st.sampled_from([1, 8, 16]))
    tokens = draw(st.integers(0, 20)), draw(st.integers(21, 70))
    num_blocks = -(-tokens[1] // block_size)
    regions = []
    for _ in range(draw(st.integers(1, 3))):
        dims, dtype = draw(st.integers(1, 100)), draw(st.sampled_from(sorted(SPECIAL)))
        build = draw(st.sampled_from([nhd, hnd, planes_first, LAYOUTS["cpu_vec"]]))
        regions.append(build(Shape(num_blocks, block_size, num_heads, dims, dtype), "layer"))
    tables = tuple(tuple(draw(st.permutations(range(num_blocks)))) for _ in regions)
    heads = Span(draw(st.integers(0, num_heads - 1)), num_heads)
    part = SlabPart(tuple(range(len(regions))), tables, Span(*tokens), heads)
    memory = make_memory(tuple(regions), 5)
    fill(memory, part, draw(st.sampled_from(["kv", "rare", "special", "mixed"])), draw(st.integers(0, 9)))
    return memory, part


@settings(max_examples=6, deadline=None, derandomize=True)
@given(slab=slabs(), name=st.sampled_from(sorted(WIDTHS)), max_programs=st.sampled_from([1, 2, 50]))
def test_any_slab(slab: tuple[KVMemory, SlabPart], name: str, max_programs: int) -> None:
    check(TritonCascadeCodec(name, WIDTHS[name], max_programs), *slab)


def test_slabs_one_after_another_leave_nothing_behind() -> None:
    """Scratch and slots are used again: for another memory, a smaller slab, one that is stored."""
    codec = TritonCascadeCodec("split", 2)
    for dims, tokens, kind in ((64, Span(0, 64), "rare"), (48, Span(3, 40), "kv"), (16, Span(0, 64), "random")):
        memory, part = scene(nhd, Shape(4, 16, 1, dims), tokens, Span(0, 1), seed=1)
        fill(memory, part, kind)
        check(codec, memory, part)


def test_a_buffer_too_small_for_the_slab_may_hold_the_stream() -> None:
    memory, part = scene(nhd, Shape(3, 16, 1, 64), Span(0, 40), Span(0, 1), seed=1)
    fill(memory, part, "kv")
    codec, payload = TritonCascadeCodec("split", 2), host_payload("split", memory, part)
    out = torch.zeros(len(payload), dtype=torch.uint8, device=DEVICE)
    assert codec.encode(on_torch(memory), part, out) == len(payload)
    assert out.cpu().numpy().tobytes() == payload
    for size in (len(payload) - 1, 100, 0):
        with pytest.raises(SlabTooLarge, match="does not fit"):
            codec.encode(on_torch(memory), part, out[:size])


def test_places_of_buffers() -> None:
    memory, part = scene(nhd, Shape(3, 16, 1, 64), Span(0, 40), Span(0, 1), seed=1)
    fill(memory, part, "kv")
    codec, payload = TritonCascadeCodec("split", 2), host_payload("split", memory, part)
    with pytest.raises(LayoutError, match="multiple of 16"):
        codec.encode(on_torch(memory), part, torch.zeros(99999, dtype=torch.uint8, device=DEVICE)[3:])
    found, wanted = on_torch(make_memory(memory.regions, None)), make_memory(memory.regions, None)
    HOST["split"].decode(wanted, part, np.frombuffer(payload, np.uint8))
    codec.decode(found, part, as_payload(b"abc" + payload)[3:])
    assert contents(found) == contents(wanted)


def test_warming_up_changes_no_bit() -> None:
    memory, _ = scene(LAYOUTS["cpu_vec"], Shape(5, 16, 2, 64), Span(0, 1), Span(0, 1), seed=4)
    device = on_torch(memory)
    TritonCascadeCodec("split", 2).warm_up(device)
    assert contents(device) == contents(memory)


def test_no_tokens_moves_nothing() -> None:
    memory, _ = scene(nhd, Shape(3, 16, 1, 64), Span(0, 1), Span(0, 1), seed=1)
    part = SlabPart((0,), ((0,),), Span(4, 4), Span(0, 1))
    codec, nothing = TritonCascadeCodec("pack4", 4), torch.zeros(0, dtype=torch.uint8, device=DEVICE)
    assert codec.encode(on_torch(memory), part, nothing) == 0
    codec.decode(on_torch(memory), part, nothing)
