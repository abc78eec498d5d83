"""The cascade codecs on paged memory: the layout changes nothing of the payload, decoding nothing beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.shapes import LAYOUTS, Shape, make_memory, mla
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.codec.coded import CascadeCodec
from pdkv_connector.codec.raw import RawCodec
from pdkv_connector.codec.registry import create_codec
from pdkv_connector.errors import LayoutError, ProtocolError, SlabTooLarge
from pdkv_connector.runtime.calibration import normal_kv
from pdkv_connector.types import Span

CODECS = ["split", "pack4"]
SHAPE = Shape(num_blocks=9, block_size=32, num_heads=3, head_dim=64)
PART = SlabPart((0, 1), ((7, 2, 5, 0, 3),) * 2, Span(9, 150), Span(1, 3))


def memory_in(layout: str) -> KVMemory:
    return make_memory((LAYOUTS[layout](SHAPE, "a"), LAYOUTS[layout](SHAPE, "b")), seed=None)


def filled(layout: str) -> tuple[KVMemory, bytes]:
    """Memory whose part holds the same normally distributed KV in every layout, and that KV in wire order."""
    memory, raw = memory_in(layout), RawCodec()
    num_bytes = raw.max_encoded_bytes(memory, PART)
    slab = normal_kv("bfloat16", 2, num_bytes // 2).view(np.uint8)
    raw.decode(memory, PART, slab)
    return memory, slab.tobytes()


def encode(codec: CascadeCodec, memory: KVMemory, part: SlabPart = PART) -> bytes:
    out = np.zeros(codec.max_encoded_bytes(memory, part), np.uint8)
    return out[: codec.encode(memory, part, out)].tobytes()


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_payload_is_that_of_any_other_layout(name: str, layout: str) -> None:
    codec = create_codec(name)
    assert isinstance(codec, CascadeCodec)
    memory, slab = filled(layout)
    payload = encode(codec, memory)
    assert payload == encode(codec, filled("nhd")[0])
    assert len(payload) < len(slab) / 1.2


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("target", LAYOUTS)
def test_decoding_into_another_layout_touches_nothing_else(name: str, target: str) -> None:
    codec = create_codec(name)
    assert isinstance(codec, CascadeCodec)
    source, _ = filled("cpu_amx")
    memory, (expected, _) = memory_in(target), filled(target)
    payload = np.frombuffer(encode(codec, source), np.uint8).copy()
    codec.decode(memory, PART, payload)
    assert all((a == b).all() for a, b in zip(memory.tensors, expected.tensors, strict=True))
    payload[len(payload) // 2] ^= 1
    before = [tensor.copy() for tensor in memory.tensors]
    with pytest.raises(ProtocolError, match="has check"):
        codec.decode(memory, PART, payload)
    assert all((a == b).all() for a, b in zip(memory.tensors, before, strict=True))


def test_a_latent_is_one_plane_of_one_head() -> None:
    region = mla(Shape(num_blocks=4, block_size=64, num_heads=1, head_dim=576))
    memory, raw = make_memory((region,), seed=None), RawCodec()
    part = SlabPart((0,), ((2, 1, 3),), Span(0, 190), Span(0, 1))
    slab = normal_kv("bfloat16", 2, raw.max_encoded_bytes(memory, part) // 2).view(np.uint8)
    raw.decode(memory, part, slab)
    codec = CascadeCodec("split", 2, num_threads=2)
    out = np.zeros(slab.size, np.uint8)
    num_bytes = codec.encode(memory, part, out)
    assert num_bytes < slab.size / 1.4
    copy = make_memory((region,), seed=None)
    codec.decode(copy, part, out[:num_bytes])
    assert (copy.tensors[0] == memory.tensors[0]).all()


def test_too_small_a_buffer_and_an_unknown_dtype_are_named() -> None:
    codec = CascadeCodec("split", 2)
    memory, slab = filled("nhd")
    with pytest.raises(SlabTooLarge, match=f"slab of {len(slab)} bytes does not fit 1000 bytes"):
        codec.encode(memory, PART, np.zeros(1000, np.uint8))
    strange = KVMemory(tuple(replace(region, dtype="int4") for region in memory.regions), memory.tensors)
    with pytest.raises(LayoutError, match="dtype 'int4' has no coded form; use codec raw"):
        codec.encode(strange, PART, np.zeros(len(slab), np.uint8))
