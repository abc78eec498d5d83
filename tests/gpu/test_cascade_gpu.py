"""Cascade codecs on a CUDA device: equal to the host codec at larger sizes, and captured in graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.shapes import LAYOUTS, Shape, hnd, make_memory, mla, nhd
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.codec.coded import CascadeCodec
from pdkv_connector.errors import ProtocolError
from pdkv_connector.types import Span
from tests.kernels.scenes import DEVICE, contents, fill, on_torch, scene

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE != "cuda", reason="there is no CUDA device, or PDKV_TEST_DEVICE has the kernels interpreted"
    ),
]

WIDTHS = {"split": 2, "pack4": 4}
CASES = [
    (nhd, Shape(70, 16, 4, 128), Span(5, 1100), Span(1, 4)),
    (hnd, Shape(130, 16, 8, 128), Span(0, 2080), Span(0, 8)),
    (mla, Shape(40, 64, 1, 576), Span(7, 2500), Span(0, 1)),
    (LAYOUTS["cpu_vec"], Shape(30, 32, 2, 80, "float16"), Span(31, 930), Span(0, 2)),
    (hnd, Shape(30, 32, 2, 128, "float32"), Span(3, 900), Span(0, 2)),
    (nhd, Shape(70, 16, 4, 128, "float8_e4m3fn"), Span(5, 1100), Span(0, 4)),
    (nhd, Shape(70, 16, 4, 64, "float8_e5m2"), Span(5, 30), Span(0, 4)),
]


def codec_of(name: str, max_programs: int | None = None) -> Any:
    from pdkv_connector.codec.cascade_triton import TritonCascadeCodec

    return TritonCascadeCodec(name, WIDTHS[name], max_programs)


def host_payload(name: str, memory: KVMemory, part: SlabPart) -> bytes:
    codec = CascadeCodec(name, WIDTHS[name])
    out = np.empty(codec.max_encoded_bytes(memory, part), np.uint8)
    return out[: codec.encode(memory, part, out)].tobytes()


def as_payload(data: bytes) -> Any:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).cuda()


@pytest.mark.parametrize("kind", ["kv", "rare", "special", "random", "zero"])
@pytest.mark.parametrize(("build", "shape", "tokens", "heads"), CASES)
@pytest.mark.parametrize("name", sorted(WIDTHS))
def test_equal_to_the_host_codec(name: str, build: Any, shape: Shape, tokens: Span, heads: Span, kind: str) -> None:
    memory, part = scene(build, shape, tokens, heads, seed=1)
    fill(memory, part, kind)
    wanted, codec = host_payload(name, memory, part), codec_of(name)
    out = torch.zeros(codec.max_encoded_bytes(memory, part), dtype=torch.uint8, device="cuda")
    num_bytes = codec.encode(on_torch(memory, "cuda"), part, out)
    assert out[:num_bytes].cpu().numpy().tobytes() == wanted
    by_host, by_kernel = make_memory(memory.regions, None), on_torch(make_memory(memory.regions, None), "cuda")
    CascadeCodec(name, WIDTHS[name]).decode(by_host, part, np.frombuffer(wanted, np.uint8))
    codec.decode(by_kernel, part, out[:num_bytes])
    assert contents(by_kernel) == contents(by_host)


@pytest.mark.parametrize("name", sorted(WIDTHS))
def test_broken_streams_are_found(name: str) -> None:
    memory, part = scene(*CASES[0], seed=1)
    fill(memory, part, "rare")
    stream, codec = host_payload(name, memory, part), codec_of(name)
    found = on_torch(make_memory(memory.regions, None), "cuda")
    codec.decode(found, part, as_payload(stream))
    for at in np.random.default_rng(4).integers(0, len(stream), 200):
        broken = bytearray(stream)
        broken[at] ^= 1 << int(at) % 8
        with pytest.raises(ProtocolError, match="coded slab"):
            codec.decode(found, part, as_payload(bytes(broken)))
    torch.cuda.synchronize()


def captured(action: Callable[[], None]) -> Any:
    """`action`, run once, then captured in a graph."""
    action()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    return graph


@pytest.mark.parametrize("name", sorted(WIDTHS))
def test_graphs_encode_and_decode(name: str) -> None:
    """A graph codes what is in the blocks when it is replayed, not what was there at its capture."""
    memory, part = scene(*CASES[1], seed=1)
    fill(memory, part, "kv", seed=1)
    codec, device = codec_of(name), on_torch(memory, "cuda")
    plan = codec.plan(device, part)
    out = torch.zeros(plan.frame.raw_bytes, dtype=torch.uint8, device="cuda")
    encode = captured(lambda: codec.queue_encode(plan, out))
    fill(memory, part, "rare", seed=2)
    for tensor, source in zip(device.tensors, on_torch(memory, "cuda").tensors, strict=True):
        tensor.copy_(source)
    encode.replay()
    num_bytes, wanted = codec.encoded_bytes(), host_payload(name, memory, part)
    assert out[:num_bytes].cpu().numpy().tobytes() == wanted

    found = on_torch(make_memory(memory.regions, None), "cuda")
    other, payload = codec_of(name), as_payload(wanted)
    decode_plan = other.plan(found, part)
    decode = captured(lambda: other.queue_decode(decode_plan, payload))
    for tensor in found.tensors:
        tensor.view(torch.uint8).fill_(0xA5)
    decode.replay()
    by_host = make_memory(memory.regions, None)
    CascadeCodec(name, WIDTHS[name]).decode(by_host, part, np.frombuffer(wanted, np.uint8))
    torch.cuda.synchronize()
    assert contents(found) == contents(by_host)


def test_streams_do_not_depend_on_the_number_of_programs() -> None:
    memory, part = scene(*CASES[1], seed=1)
    fill(memory, part, "rare")
    device, streams = on_torch(memory, "cuda"), set()
    for max_programs in (1, 7, 1000):
        codec = codec_of("split", max_programs)
        out = torch.zeros(codec.max_encoded_bytes(device, part), dtype=torch.uint8, device="cuda")
        streams.add(out[: codec.encode(device, part, out)].cpu().numpy().tobytes())
    assert len(streams) == 1


def test_a_stream_of_its_own() -> None:
    """Work is queued on the caller's stream: nothing waits for the default one, nor that for it."""
    memory, part = scene(*CASES[0], seed=1)
    fill(memory, part, "kv")
    device, codec = on_torch(memory, "cuda"), codec_of("split")
    out = torch.zeros(codec.max_encoded_bytes(device, part), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        num_bytes = codec.encode(device, part, out)
    torch.cuda.synchronize()
    assert out[:num_bytes].cpu().numpy().tobytes() == host_payload("split", memory, part)
