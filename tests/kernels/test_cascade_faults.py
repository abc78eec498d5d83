"""Cascade kernels and streams that are not what they should be: a named error, and only the slab is touched."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from benchmarks.shapes import Shape, element_offsets, make_memory, nhd
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.codec.cascade_format import CHECK_OFFSET, Frame, merge
from pdkv_connector.codec.cascade_loops import check_of
from pdkv_connector.codec.coded import sections_of
from pdkv_connector.errors import ProtocolError
from pdkv_connector.types import Span
from tests.kernels.fence import fenced
from tests.kernels.scenes import DEVICE, fill, on_torch, scene
from tests.kernels.test_cascade import HOST, WIDTHS, as_payload, host_payload

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from pdkv_connector.codec.cascade_triton import TritonCascadeCodec  # noqa: E402

interpreted = pytest.mark.skipif(DEVICE != "cpu", reason="only the interpreter shows addresses")


def small_slab(name: str) -> tuple[KVMemory, SlabPart, bytes, Frame]:
    """Two layers, two blocks each, the second short; coded, and one constant plane."""
    memory, part = scene(nhd, Shape(5, 16, 2, 64), Span(5, 75), Span(1, 2), seed=1)
    fill(memory, part, "rare")
    memory.tensors[1][element_offsets(memory.regions[1], part, 1)[1]] = 7
    return memory, part, host_payload(name, memory, part), Frame(WIDTHS[name], merge(sections_of(memory, part)))


def sealed(stream: bytearray) -> bytes:
    """With a check that fits what the stream says now."""
    words = np.frombuffer(stream, np.uint32)
    stream[CHECK_OFFSET : CHECK_OFFSET + 4] = int(check_of(words)).to_bytes(4, "little")
    return bytes(stream)


class Fenced:
    """Decodes streams of one slab, and sees to it that nothing but the slab changes and no other memory is touched."""

    def __init__(self, name: str, memory: KVMemory, part: SlabPart) -> None:
        self._part = part
        self._found = on_torch(make_memory(memory.regions, None))
        self._codec = TritonCascadeCodec(name, WIDTHS[name])
        self._plan = self._codec.plan(self._found, part)

    def decode(self, data: bytes) -> str:
        """The error that decoding ends in, or nothing."""
        payload, fault = as_payload(data), ""
        for tensor in self._found.tensors:
            tensor.view(torch.uint8).fill_(0xA5)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._codec, "plan", lambda *_: self._plan)
            if not self._codec._rooms:
                self._codec.queue_decode(self._plan, payload)
            plans = [group.plan for group in self._plan.groups]
            with fenced([payload, *plans], [*self._found.tensors, *self._codec._rooms.values()]) as fence:
                try:
                    self._codec.decode(self._found, self._part, payload)
                except ProtocolError as error:
                    fault = str(error)
        assert not fence.trespasses, fence.trespasses
        self._check_outside()
        return fault

    def _check_outside(self) -> None:
        for position, layer in enumerate(self._part.layers):
            elements = self._found.tensors[layer].view(torch.int16).numpy().copy()
            elements[element_offsets(self._found.regions[layer], self._part, position)] = -0x5A5B  # 0xA5A5
            assert (elements == -0x5A5B).all()


def places_to_break(frame: Frame, num_bytes: int) -> list[int]:
    """A few bytes of every part of a stream."""
    rng = np.random.default_rng(8)
    edges = [0, 16, 32, frame.directory_at, frame.tables_at, frame.blocks_at, num_bytes]
    return [int(at) for low, high in pairwise(edges) for at in rng.integers(low, high, 2)] + [24]


@interpreted
@pytest.mark.parametrize("name", sorted(WIDTHS))
def test_a_flipped_bit_is_found_and_harms_nothing_else(name: str) -> None:
    memory, part, stream, frame = small_slab(name)
    fenced_codec = Fenced(name, memory, part)
    assert fenced_codec.decode(stream) == ""
    for at in places_to_break(frame, len(stream)):
        broken = bytearray(stream)
        broken[at] ^= 1 << at % 8
        assert "coded slab" in fenced_codec.decode(bytes(broken)), f"byte {at}"


def broken_streams(stream: bytes, frame: Frame) -> list[tuple[str, bytes]]:
    """Streams whose check fits, and what is wrong with them."""
    entries = np.frombuffer(stream, np.uint16, frame.num_blocks, frame.directory_at)
    coded = int(np.flatnonzero(entries >> 14 == 0)[0])
    constant = int(np.flatnonzero(entries >> 14 == 2)[0])
    starts = frame.blocks_at + np.concatenate([[0], np.cumsum(8 * (entries.astype(int) & 0x3FFF))])

    def with_entry(index: int, value: int) -> bytes:
        copy = bytearray(stream)
        at = frame.directory_at + 2 * index
        copy[at : at + 2] = value.to_bytes(2, "little")
        return sealed(copy)

    def with_bytes(at: int, data: bytes) -> bytes:
        return sealed(bytearray(stream[:at] + data + stream[at + len(data) :]))

    length, num_bytes = int(entries[coded]), int(starts[coded + 1] - starts[coded])
    return [
        ("unknown kind", with_entry(coded, 3 << 14 | length)),
        ("whose length cannot be", with_entry(coded, 1 << 14 | length)),
        ("whose length cannot be", with_entry(coded, 2 << 14 | length)),
        ("has blocks up to byte", with_entry(coded, length + 1)),
        ("has blocks up to byte", with_entry(coded, 0x3FFF)),
        ("has blocks up to byte", with_entry(frame.num_blocks - 1, 0)),
        ("parts do not add up", with_entry(constant, 1)),
        ("whose length cannot be", with_bytes(int(starts[constant]) + 5, b"\1")),
        ("parts do not add up", with_bytes(int(starts[coded]) + 4096, b"\xff" * (num_bytes - 4096))),
        ("parts do not add up", with_bytes(int(starts[coded]) + 4096, b"\0" * 1024)),
    ]


@interpreted
@pytest.mark.parametrize("name", sorted(WIDTHS))
def test_faults_are_named_as_the_host_codec_names_them(name: str) -> None:
    memory, part, stream, frame = small_slab(name)
    fenced_codec = Fenced(name, memory, part)
    for wanted, broken in broken_streams(stream, frame):
        assert wanted in fenced_codec.decode(broken)
        with pytest.raises(ProtocolError, match=re.escape(wanted)):
            HOST[name].decode(make_memory(memory.regions, None), part, np.frombuffer(broken, np.uint8))


@interpreted
def test_the_fence_notes_trespassers() -> None:
    memory, part, stream, _ = small_slab("split")
    codec, found, payload = TritonCascadeCodec("split", 2), on_torch(memory), as_payload(stream)
    plan = codec.plan(found, part)
    codec.queue_decode(plan, payload)
    everything = [*found.tensors, *codec._rooms.values()]
    plans = [group.plan for group in plan.groups]
    with fenced([payload[:-1], *plans], everything) as fence:
        codec.queue_decode(plan, payload)
    assert any("read" in trespass for trespass in fence.trespasses)
    with fenced([payload, *plans], [found.tensors[0], *codec._rooms.values()]) as fence:
        codec.queue_decode(plan, payload)
    assert any("write" in trespass for trespass in fence.trespasses)


@pytest.mark.parametrize("name", sorted(WIDTHS))
def test_streams_of_another_length_or_shape(name: str) -> None:
    memory, part, stream, frame = small_slab(name)
    codec, found = TritonCascadeCodec(name, WIDTHS[name]), on_torch(make_memory(memory.regions, None))
    for size in (0, 24, frame.blocks_at - 8, frame.blocks_at, len(stream) - 8, len(stream) - 3):
        with pytest.raises(ProtocolError, match="coded slab"):
            codec.decode(found, part, as_payload(stream)[:size])
    with pytest.raises(ProtocolError, match="coded slab"):
        codec.decode(found, part, as_payload(stream + b"\0" * 8))
    other = SlabPart(part.layers, part.block_tables, Span(6, 76), Span(0, 1))
    codec.decode(found, other, as_payload(stream))  # a slab of the same shape takes it, others do not
    with pytest.raises(ProtocolError, match="the slab agreed on has"):
        codec.decode(found, SlabPart(part.layers, part.block_tables, Span(6, 75), Span(0, 1)), as_payload(stream))


def test_encoding_touches_its_own_memory_only() -> None:
    if DEVICE != "cpu":
        pytest.skip("only the interpreter shows addresses")
    memory, part, stream, _ = small_slab("split")
    codec, device = TritonCascadeCodec("split", 2), on_torch(memory)
    plan, out = codec.plan(device, part), torch.zeros(len(stream), dtype=torch.uint8)
    codec.queue_encode(plan, out)
    out.zero_()
    rooms: list[Any] = list(codec._rooms.values())
    with fenced([*device.tensors, *(group.plan for group in plan.groups)], [out, *rooms]) as fence:
        codec.queue_encode(plan, out)
    assert not fence.trespasses
    assert out.numpy().tobytes() == stream
