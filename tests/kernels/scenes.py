"""Paged KV for kernel tests: on the host for the reference, as torch tensors for the kernels."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.shapes import Shape, element_offsets, make_memory, to_torch
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.types import Span


def _device() -> str:
    """The GPU where there is one, else the CPU, where kernels are interpreted; a process can do only one of the two."""
    if (chosen := os.environ.get("PDKV_TEST_DEVICE")) is not None:
        return chosen
    if importlib.util.find_spec("torch") is None:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


DEVICE = _device()

SPECIAL = {
    "bfloat16": [0x0000, 0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7F81, 0xFFFF, 0x7FC0],
    "float16": [0x0000, 0x8000, 0x0001, 0x83FF, 0x7C00, 0xFC00, 0x7C01, 0xFFFF, 0x7E00],
    "float32": [0, 0x80000000, 1, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7FC00000],
    "float8_e4m3fn": [0x00, 0x80, 0x01, 0x87, 0x7F, 0xFF],
    "float8_e5m2": [0x00, 0x80, 0x01, 0x83, 0x7C, 0xFC, 0x7D, 0xFF],
}
"""Zeros, denormals, infinities and NaNs with payloads, both signs."""


def scene(build: Any, shape: Shape, tokens: Span, heads: Span, seed: int | None) -> tuple[KVMemory, SlabPart]:
    """Two layers of random bits, or of 0xA5 without a seed, and a part of them; each with a block table of its own."""
    memory = make_memory((build(shape, "a"), build(shape, "b")), seed)
    table = tuple(np.random.default_rng(3).permutation(shape.num_blocks).tolist())
    return memory, SlabPart((0, 1), (table, table[::-1]), tokens, heads)


def on_torch(memory: KVMemory, device: str = DEVICE) -> KVMemory:
    """The same KV on the device of the kernels."""
    pairs = zip(memory.regions, memory.tensors, strict=True)
    return KVMemory(memory.regions, tuple(to_torch(tensor, region.dtype).to(device) for region, tensor in pairs))


def contents(memory: KVMemory) -> list[bytes]:
    """All bytes of every layer, host or torch."""
    import torch

    return [
        tensor.tobytes() if isinstance(tensor, np.ndarray) else tensor.cpu().view(torch.uint8).numpy().tobytes()
        for tensor in memory.tensors
    ]


def kv_bits(dtype: str, size: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    """Normal values whose last axis has a scale for each index, as the dtype's bits in unsigned integers."""
    import torch

    values = rng.standard_normal(size, np.float32) * np.exp2(rng.integers(-3, 3, size[-1])).astype(np.float32)
    bits: NDArray[Any] = torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.uint8).numpy()
    return bits.view(f"u{bits.size // values.size}")


def fill(memory: KVMemory, part: SlabPart, kind: str, seed: int = 0) -> None:
    """Write elements of one kind over those of `part`."""
    rng = np.random.default_rng(seed)
    for position, layer in enumerate(part.layers):
        region, tensor = memory.regions[layer], memory.tensors[layer]
        places = element_offsets(region, part, position)
        tensor[places] = _elements(kind, region.dtype, tensor.dtype, places.shape, rng)


def _elements(kind: str, dtype: str, unit: Any, size: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    if kind == "zero":
        return np.zeros(size, unit)
    if kind == "random":
        return rng.integers(0, np.iinfo(unit).max, size, unit, endpoint=True)
    if kind == "special":
        return rng.choice(np.array(SPECIAL[dtype], unit), size)
    elements = kv_bits(dtype, size, rng)
    if kind == "rare":  # now and then a value that no codebook has
        elements = np.where(rng.random(size) < 0.02, rng.choice(np.array(SPECIAL[dtype], unit), size), elements)
    if kind == "mixed":  # constant, coded and stored blocks in one stream
        elements[0, :, : size[2] // 2] = elements[0, 0, 0, 0]
        elements[1:] = rng.integers(0, np.iinfo(unit).max, size, unit, endpoint=True)[1:]
    return elements
