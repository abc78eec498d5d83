"""Paged KV for the GPU benchmark, of any size, made up on the device."""

from __future__ import annotations

import torch

from benchmarks.shapes import Shape, hnd
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.types import Span

NUM_HEADS, HEAD_DIM, BLOCK_SIZE = 8, 128, 16
TOKEN_BYTES = 2 * NUM_HEADS * HEAD_DIM * 2
"""One token in one layer, K and V: 4 KiB, as in Llama-3.1-8B."""
MAX_TOKENS = 16384


def slab_geometry(raw_bytes: int) -> tuple[int, int]:
    """Layers and tokens of a slab of `raw_bytes`: as many tokens as it takes, more layers past `MAX_TOKENS`."""
    num_tokens = min(raw_bytes // TOKEN_BYTES, MAX_TOKENS)
    return raw_bytes // (num_tokens * TOKEN_BYTES), num_tokens


def make_kv(num_layers: int, num_tokens: int, device: str) -> KVMemory:
    """Paged bf16 KV: normal values, each channel with a scale of its own, from 1/8 to 8. Tokens in whole blocks."""
    torch.manual_seed(5)
    num_blocks = num_tokens // BLOCK_SIZE
    region = hnd(Shape(num_blocks, BLOCK_SIZE, NUM_HEADS, HEAD_DIM))
    scale = torch.exp2(6 * torch.rand(NUM_HEADS, 1, 2 * HEAD_DIM, device=device) - 3)
    size = (num_blocks, NUM_HEADS, BLOCK_SIZE, 2 * HEAD_DIM)
    layers = [(torch.randn(size, device=device) * scale).bfloat16().view(-1) for _ in range(num_layers)]
    return KVMemory((region,) * num_layers, tuple(layers))


def whole(memory: KVMemory) -> SlabPart:
    """The slab of all of `memory`, its blocks in an order that is not theirs."""
    region, num_layers = memory.regions[0], len(memory.regions)
    table = torch.randperm(region.num_blocks, generator=torch.Generator().manual_seed(6)).tolist()
    tokens = Span(0, region.num_blocks * region.block_size)
    return SlabPart(tuple(range(num_layers)), (table,) * num_layers, tokens, Span(0, region.num_heads))
