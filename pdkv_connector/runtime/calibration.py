"""What codecs do to made-up KV: the first guess of their speeds and ratios, replaced by what real slabs show."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdkv_connector.codec.base import Codec, KVMemory, SlabPart
from pdkv_connector.codec.slab_shape import slab_bytes
from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.axes import extent
from pdkv_connector.layout.region import Region
from pdkv_connector.policy.codec_choice import RAW
from pdkv_connector.policy.codec_record import CodecRecord
from pdkv_connector.types import Span

logger = logging.getLogger(__name__)

SAMPLE_BYTES = 8 << 20
MAX_BLOCKS = 4096
ROUNDS = 2


def calibrate(
    codecs: Mapping[str, Codec], memory: KVMemory, device: str, synchronize: Callable[[], None]
) -> dict[str, CodecRecord]:
    """A record for each codec that can code `memory`, measured on a sample of its layers; takes milliseconds.

    The sample has one layer of each dtype. Raises LayoutError when the raw codec cannot read it.
    """
    sample, part = _sample(memory, device)
    out = _on(device, np.empty(slab_bytes(sample, part), np.uint8))
    records = {}
    for name, codec in codecs.items():
        try:
            records[name] = _measure(codec, sample, part, out, synchronize)
        except LayoutError as error:
            if name == RAW:
                raise
            logger.info("codec %s is not offered: %s", name, error)
    return records


def _sample(memory: KVMemory, device: str) -> tuple[KVMemory, SlabPart]:
    first_of_dtype = {region.dtype: region for region in reversed(memory.regions)}.values()
    regions = tuple(replace(region, num_blocks=_num_blocks(region)) for region in first_of_dtype)
    elements = [normal_kv(region.dtype, region.elem_bytes, extent(region)) for region in regions]
    tables = tuple(tuple(range(region.num_blocks)) for region in regions)
    num_tokens = min(region.num_blocks * region.block_size for region in regions)
    heads = Span(0, min(region.num_heads for region in regions))
    sample = KVMemory(regions, tuple(_on(device, array) for array in elements))
    return sample, SlabPart(tuple(range(len(regions))), tables, Span(0, num_tokens), heads)


def _num_blocks(region: Region) -> int:
    block_bytes = region.bytes_per_token_head * region.num_heads * region.block_size
    return max(1, min(region.num_blocks, MAX_BLOCKS, SAMPLE_BYTES // block_bytes))


def _measure(codec: Codec, memory: KVMemory, part: SlabPart, out: Any, synchronize: Callable[[], None]) -> CodecRecord:
    """The best of the rounds: the first may have to compile."""
    encode_s = decode_s = float("inf")
    num_bytes = len(out)
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        num_bytes = codec.encode(memory, part, out)
        synchronize()
        encoded = time.perf_counter()
        codec.decode(memory, part, out[:num_bytes])
        synchronize()
        encode_s, decode_s = min(encode_s, encoded - begun), min(decode_s, time.perf_counter() - encoded)
    return CodecRecord(len(out) / encode_s, len(out) / decode_s, len(out) / num_bytes)


def normal_kv(dtype: str, elem_bytes: int, num_elements: int) -> NDArray[Any]:
    """Normally distributed elements of `dtype`, as its bits in unsigned integers."""
    values = np.random.default_rng(0).standard_normal(num_elements, np.float32)
    if dtype == "float8_e4m3fn":
        halves = (values / 256).astype(np.float16).view(np.uint16)  # an exponent of 4 bits then holds what 5 held
        return (halves >> 8 & 0x80 | halves >> 7 & 0x7F).astype(np.uint8)
    if dtype in ("float16", "float8_e5m2"):
        halves = values.astype(np.float16).view(np.uint16)
        return halves if dtype == "float16" else (halves >> 8).astype(np.uint8)
    bits = values.view(np.uint32)
    return bits if elem_bytes == 4 else (bits >> 16).astype(np.uint16 if elem_bytes == 2 else np.uint8)


def _on(device: str, array: NDArray[Any]) -> Any:
    """`array`, or its copy on a GPU."""
    if device == "cpu":
        return array
    import torch

    signed = {1: np.uint8, 2: np.int16, 4: np.int32}[array.itemsize]
    return torch.from_numpy(array.view(signed)).to(device)
