"""Digests of a request's KV in wire order: equal on two engines when their KV is equal, whatever their layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from pdkv_connector.codec.base import Codec, KVMemory, SlabPart
from pdkv_connector.codec.slab_shape import slab_bytes
from pdkv_connector.types import Span

CHUNK_TOKENS = 1024
"""Tokens hashed at a time; both sides must agree, since chunks follow each other in the hash."""


def layer_digests(
    memory: KVMemory,
    codec: Codec,
    layers: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    tokens: Span,
    heads: Span,
) -> list[str]:
    """One xxh3-128 digest per layer over `tokens` x `heads`, head by head; `codec` must be a raw one.

    `block_tables[i]` belongs to `layers[i]`. The caller keeps the engine from writing meanwhile. Raises LayoutError.
    """
    digests = []
    for layer, table in zip(layers, block_tables, strict=True):
        state = xxhash.xxh3_128()
        for part in _chunks(layer, table, tokens, heads):
            state.update(_payload(memory, codec, part).data)
        digests.append(state.hexdigest())
    return digests


def _chunks(layer: int, table: Sequence[int], tokens: Span, heads: Span) -> Iterator[SlabPart]:
    for head in heads:
        for start in range(tokens.start, tokens.stop, CHUNK_TOKENS):
            chunk = Span(start, min(start + CHUNK_TOKENS, tokens.stop))
            yield SlabPart((layer,), (table,), chunk, Span(head, head + 1))


def _payload(memory: KVMemory, codec: Codec, part: SlabPart) -> NDArray[np.uint8]:
    num_bytes = slab_bytes(memory, part)
    tensor = memory.tensors[part.layers[0]]
    if isinstance(tensor, np.ndarray) or tensor.device.type == "cpu":
        out = np.empty(num_bytes, np.uint8)
        codec.encode(memory, part, out)
        return out
    return _device_payload(memory, codec, part, num_bytes, tensor.device)


def _device_payload(memory: KVMemory, codec: Codec, part: SlabPart, num_bytes: int, device: Any) -> NDArray[np.uint8]:
    import torch

    out = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    codec.encode(memory, part, out)
    host: NDArray[np.uint8] = out.cpu().numpy()
    return host
