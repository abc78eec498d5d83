"""Raw slabs to measure codecs on: KV of real models in any dtype, and data that no codec should like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import real_kv

MODELS = ("smollm2", "gemma3")
SYNTHETIC = ("random", "constant", "misleading")
DTYPES = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float32")
UNITS: dict[str, Any] = {
    "bfloat16": np.uint16, "float16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8,
    "float32": np.uint32,
}  # fmt: skip
"""Integers that hold the bits of a dtype."""

NUM_TOKENS_COMPUTED = 2048
CALM_TOKENS = 128
SYNTHETIC_SHAPE = (18, 2, 3, 64)
"""Layers, planes, heads, dims of the synthetic slabs."""
FEW_TOKENS, LAYERS_OF_FEW_TOKENS = 512, 6
"""Slabs of few tokens hold several layers, as those that share a ring slot do; both models have a multiple of six."""


@dataclass(frozen=True)
class SlabSet:
    """Slabs of one source: `bits[i]` is `[layer][plane][head][token][dim]`, unsigned integers of the dtype's size."""

    name: str
    dtype: str
    bits: tuple[NDArray[Any], ...]

    @property
    def elem_bytes(self) -> int:
        return self.bits[0].dtype.itemsize

    @property
    def num_bytes(self) -> int:
        """Raw bytes of all slabs."""
        return sum(slab.nbytes for slab in self.bits)

    def plane(self, index: int) -> SlabSet:
        """The slabs with one plane each: 0 for K, 1 for V."""
        return SlabSet(self.name, self.dtype, tuple(np.ascontiguousarray(b[:, index : index + 1]) for b in self.bits))


def real(model: str, num_tokens: int, dtype: str = "bfloat16") -> SlabSet:
    """Slabs of `num_tokens` tokens that tile every text and layer.

    bfloat16 and float32 are forward passes of their own. The others are rounded from float32: from bfloat16 their last
    mantissa bits would be zeros, which no cache holds.
    """
    bits = real_kv.load(model, NUM_TOKENS_COMPUTED, dtype if dtype in real_kv.BITS else "float32")
    if dtype not in real_kv.BITS:
        bits = _converted(bits, dtype)
    return SlabSet(model, dtype, tuple(_cut(bits, num_tokens)))


def synthetic(name: str, num_tokens: int) -> SlabSet:
    """bfloat16 data of the kind `name`, one of SYNTHETIC."""
    layers, planes, heads, dims = SYNTHETIC_SHAPE
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 1 << 16, (layers, planes, heads, num_tokens, dims), np.uint16)
    if name == "constant":
        bits[:] = 0x3F80
    elif name == "misleading":
        # Each channel is calm in the tokens that a codec may learn from, then its exponents are uniform.
        bits[..., :CALM_TOKENS, :] = bits[..., :CALM_TOKENS, :] & 0x807F | 0x3F80
    return SlabSet(name, "bfloat16", tuple(_cut(bits[None], num_tokens)))


def _cut(bits: NDArray[Any], num_tokens: int) -> Iterator[NDArray[Any]]:
    count = LAYERS_OF_FEW_TOKENS if num_tokens <= FEW_TOKENS else 1
    for of_text in bits:
        for layer in range(0, of_text.shape[0], count):
            for start in range(0, of_text.shape[3] - num_tokens + 1, num_tokens):
                yield np.ascontiguousarray(of_text[layer : layer + count, :, :, start : start + num_tokens])


def _converted(bits: NDArray[Any], dtype: str) -> NDArray[Any]:
    """float32 bits as bits of `dtype`; fp8 is scaled per layer and plane so that amax maps to half the largest value,
    as engines do with k_scale and v_scale.
    """
    import torch

    values = torch.from_numpy(bits).view(torch.float32)
    if dtype.startswith("float8"):
        amax = values.abs().amax(dim=(0, 3, 4, 5), keepdim=True)
        values = values / amax * (torch.finfo(getattr(torch, dtype)).max / 2)
    converted: NDArray[Any] = values.to(getattr(torch, dtype)).view(torch.uint8).numpy()
    return converted.view(UNITS[dtype])
