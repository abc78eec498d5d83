"""Gather and scatter kernels against the host codec: in Triton's interpreter, or on a GPU if told so."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.shapes import LAYOUTS, Shape, mla
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.codec.raw import RawCodec
from pdkv_connector.errors import LayoutError, ProtocolError
from pdkv_connector.types import Span
from tests.kernels.scenes import DEVICE, contents, on_torch, scene

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from pdkv_connector.codec.raw_triton import TritonRawCodec  # noqa: E402

CASES = [
    (Shape(5, 16, 3, 64), Span(5, 70), Span(1, 3)),
    (Shape(3, 32, 2, 96), Span(32, 64), Span(0, 1)),
    (Shape(4, 32, 1, 32), Span(31, 33), Span(0, 1)),
    (Shape(2, 64, 2, 32, "float32"), Span(0, 128), Span(0, 2)),
    (Shape(6, 8, 2, 48, "float8_e4m3fn"), Span(3, 41), Span(1, 2)),
]
MLA_CASES = [(Shape(4, 16, 1, 576), Span(7, 40), Span(0, 1))]


def allowed(layout: str, shape: Shape) -> bool:
    return layout != "cpu_amx" or (shape.block_size % 32 == 0 and shape.head_dim % 32 == 0)


CELLS = [
    *((build, *case) for name, build in LAYOUTS.items() for case in CASES if allowed(name, case[0])),
    *((mla, *case) for case in MLA_CASES),
]


def host_payload(memory: KVMemory, part: SlabPart) -> np.ndarray:
    out = np.empty(RawCodec().max_encoded_bytes(memory, part), np.uint8)
    RawCodec().encode(memory, part, out)
    return out


@pytest.mark.parametrize(("build", "shape", "tokens", "heads"), CELLS)
def test_gather_equals_the_host_codec(build: object, shape: Shape, tokens: Span, heads: Span) -> None:
    memory, part = scene(build, shape, tokens, heads, seed=1)
    wanted = host_payload(memory, part)
    out = torch.zeros(wanted.size + 8, dtype=torch.uint8, device=DEVICE)
    assert TritonRawCodec().encode(on_torch(memory), part, out) == wanted.size
    assert out[: wanted.size].cpu().numpy().tobytes() == wanted.tobytes()
    assert not out[wanted.size :].any()


@pytest.mark.parametrize(("build", "shape", "tokens", "heads"), CELLS)
def test_scatter_equals_the_host_codec(build: object, shape: Shape, tokens: Span, heads: Span) -> None:
    """Equal over the whole tensor: the same elements written, every other one left alone."""
    source, part = scene(build, shape, tokens, heads, seed=2)
    payload = host_payload(source, part)
    by_host, by_kernel = (scene(build, shape, tokens, heads, seed=None)[0] for _ in range(2))
    RawCodec().decode(by_host, part, payload)
    device, codec = on_torch(by_kernel), TritonRawCodec()
    codec.decode(device, part, torch.from_numpy(payload.copy()).to(DEVICE))
    assert contents(device) == [tensor.tobytes() for tensor in by_host.tensors]
    payload[payload.size // 2] ^= 1
    codec.decode(device, part, torch.from_numpy(payload).to(DEVICE))
    assert contents(device) != [tensor.tobytes() for tensor in by_host.tensors]


def test_warming_up_changes_no_bit() -> None:
    memory, _ = scene(LAYOUTS["cpu_vec"], *CASES[0], seed=4)
    device, codec = on_torch(memory), TritonRawCodec()
    before = contents(device)
    codec.warm_up(device)
    assert contents(device) == before


def test_faults_are_named() -> None:
    memory, part = scene(LAYOUTS["nhd"], *CASES[0], seed=1)
    codec, device = TritonRawCodec(), on_torch(memory)
    total = codec.max_encoded_bytes(device, part)
    with pytest.raises(LayoutError, match="does not fit a buffer"):
        codec.encode(device, part, torch.zeros(total - 1, dtype=torch.uint8, device=DEVICE))
    with pytest.raises(ProtocolError, match="the slab takes"):
        codec.decode(device, part, torch.zeros(total + 1, dtype=torch.uint8, device=DEVICE))
    short = KVMemory(device.regions, tuple(tensor[:-1] for tensor in device.tensors))
    with pytest.raises(LayoutError, match="layer a reaches element"):
        TritonRawCodec().encode(short, part, torch.zeros(total, dtype=torch.uint8, device=DEVICE))


def test_no_tokens_moves_nothing() -> None:
    memory, _ = scene(LAYOUTS["nhd"], *CASES[0], seed=1)
    part = SlabPart((0,), ((0,),), Span(4, 4), Span(0, 1))
    assert TritonRawCodec().encode(on_torch(memory), part, torch.zeros(0, dtype=torch.uint8)) == 0
