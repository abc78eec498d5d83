"""The packing of vLLM's CPU cache, as its own writer shows it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.shapes import Shape, cpu_amx, cpu_vec
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.codec.raw import RawCodec
from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.blocks import packed_region
from pdkv_connector.types import Span

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from pdkv_connector.adapters.vllm import cpu_layout  # noqa: E402

SHAPES = [(128, 64), (128, 256), (32, 512), (64, 96)]


def known(shape: tuple[int, int], isa: str) -> object:
    region = (cpu_amx if isa == "amx" else cpu_vec)(Shape(1, shape[0], 1, shape[1]))
    return region.planes


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_vector_units(shape: tuple[int, int], dtype: object) -> None:
    assert cpu_layout.probe_planes(dtype, *shape, isa="vec") == known(shape, "vec")


@pytest.mark.parametrize("shape", SHAPES)
def test_matrix_units(shape: tuple[int, int]) -> None:
    try:
        planes = cpu_layout.probe_planes(torch.bfloat16, *shape, isa="amx")
    except RuntimeError as error:
        pytest.skip(f"this build of vLLM has no AMX writer: {error}")
    assert planes == known(shape, "amx")


def test_fp8_cache_is_packed_as_the_model_dtype() -> None:
    assert cpu_layout.probe_planes(torch.bfloat16, 128, 64, "vec", "fp8_e5m2") == known((128, 64), "vec")


def test_a_writer_that_drops_a_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import _custom_ops as ops

    write = ops.cpu_attn_reshape_and_cache

    def forgetful(key: object, value: object, k: object, v: object, slots: object, isa: str, **rest: object) -> None:
        write(key[:-1], value[:-1], k, v, slots[:-1], isa, **rest)  # type: ignore[index]

    monkeypatch.setattr(ops, "cpu_attn_reshape_and_cache", forgetful)
    with pytest.raises(LayoutError, match="did not fill exactly the block"):
        cpu_layout.probe_planes(torch.bfloat16, 64, 32, isa="vec")


def test_the_codec_reads_what_the_engine_wrote() -> None:
    """Random K and V through vLLM's writer, then through the raw codec, give K and V back bit for bit."""
    from vllm import _custom_ops as ops

    num_tokens, num_heads, head_dim, size = 150, 3, 64, 128
    isa = cpu_layout.default_isa(torch.bfloat16, size, head_dim)
    cache = torch.zeros(4, num_heads, size, 2 * head_dim, dtype=torch.bfloat16)
    key, value = torch.randn(2, num_tokens, num_heads, head_dim).to(torch.bfloat16)
    table = (3, 1)
    slots = torch.tensor([table[t // size] * size + t % size for t in range(num_tokens)])
    key_cache, value_cache = cache.view(4, num_heads, 2 * size, head_dim).chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, slots, isa)
    planes = cpu_layout.probe_planes(torch.bfloat16, size, head_dim)
    region = packed_region("layer", cache.shape, cache.stride(), "bfloat16", planes)
    part = SlabPart((0,), (table,), Span(0, num_tokens), Span(0, num_heads))
    out = np.empty(2 * num_tokens * num_heads * head_dim * 2, np.uint8)
    RawCodec().encode(KVMemory((region,), (cache.flatten(),)), part, out)
    wanted = torch.stack([key, value]).transpose(1, 2).contiguous().view(torch.uint8).numpy()
    assert out.tobytes() == wanted.tobytes()
