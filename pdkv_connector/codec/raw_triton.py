"""The raw codec on a GPU: the same bytes as `codec.raw`, moved by Triton kernels on the current stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from pdkv_connector.codec.base import Buffer, KVMemory, SlabPart
from pdkv_connector.codec.slab_shape import check_part, layer_bytes, slab_bytes
from pdkv_connector.errors import LayoutError, ProtocolError
from pdkv_connector.layout.axes import check_fits
from pdkv_connector.layout.copy_plan import blocks_of
from pdkv_connector.layout.region import PlaneMap, Region
from pdkv_connector.types import Span
from pdkv_kernels.gather import gather
from pdkv_kernels.paged import PagedPlane
from pdkv_kernels.scatter import scatter

INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class TritonRawCodec:
    """One launch per layer and plane. `encode` and `decode` return once the work is queued on the current stream."""

    name = "raw"

    def __init__(self) -> None:
        self._memory: KVMemory | None = None
        self._elements: list[Any] = []

    def warm_up(self, memory: KVMemory | None = None) -> None:
        """Compile for every layout in `memory` by moving token 0 of block 0 out and back. Raises LayoutError."""
        if memory is None:
            return
        for layer, tensor in enumerate(memory.tensors):
            part = SlabPart((layer,), ((0,),), Span(0, 1), Span(0, 1))
            out = torch.empty(slab_bytes(memory, part), dtype=torch.uint8, device=tensor.device)
            self.encode(memory, part, out)
            self.decode(memory, part, out)

    def max_encoded_bytes(self, memory: KVMemory, part: SlabPart) -> int:
        return slab_bytes(memory, part)

    def encode(self, memory: KVMemory, part: SlabPart, out: Buffer) -> int:
        """Gather `part` into `out`, a uint8 tensor on the KV's device. Raises LayoutError."""
        total = slab_bytes(memory, part)
        if out.numel() < total:
            raise LayoutError(f"slab of {total} bytes does not fit a buffer of {out.numel()} bytes")
        self._move(gather, memory, part, out)
        return total

    def decode(self, memory: KVMemory, part: SlabPart, payload: Buffer) -> None:
        """Scatter `payload` into the blocks of `part`. Raises ProtocolError for its length, else LayoutError."""
        total = slab_bytes(memory, part)
        if payload.numel() != total:
            raise ProtocolError(f"raw payload of {payload.numel()} bytes, the slab takes {total} bytes")
        self._move(scatter, memory, part, payload)

    def _move(self, kernel: Callable[..., None], memory: KVMemory, part: SlabPart, data: Any) -> None:
        check_part(memory, part)
        if not part.tokens or not part.heads:
            return
        elements = self._prepare(memory)
        at = 0
        for layer, block_ids in zip(part.layers, _block_ids(memory, part, data.device), strict=True):
            region = memory.regions[layer]
            num_bytes = layer_bytes(region, part) // len(region.planes)
            first_token = part.tokens.start % region.block_size
            for plane in region.planes:
                slab = data[at : at + num_bytes].view(INTS[region.elem_bytes])
                place = _place(region, plane, part.heads.start)
                kernel(elements[layer], slab, block_ids, first_token, len(part.tokens), len(part.heads), place)
                at += num_bytes

    def _prepare(self, memory: KVMemory) -> list[Any]:
        """Integer views of `memory`, kept for as long as the same object comes."""
        if memory is not self._memory:
            self._elements, self._memory = flat_elements(memory), memory
        return self._elements


def flat_elements(memory: KVMemory) -> list[Any]:
    """The tensors as integers of their elements' size. Raises LayoutError when a region does not fit its tensor."""
    pairs = list(zip(memory.regions, memory.tensors, strict=True))
    for region, tensor in pairs:
        check_fits(region, tensor.numel())
    return [tensor.view(INTS[region.elem_bytes]) for region, tensor in pairs]


def _place(region: Region, plane: PlaneMap, first_head: int) -> PagedPlane:
    return PagedPlane(
        region.block_size,
        region.head_dim,
        plane.base + first_head * region.head_stride,
        region.block_stride,
        region.head_stride,
        (plane.token.factor, plane.token.outer_stride, plane.token.inner_stride),
        (plane.dim.factor, plane.dim.outer_stride, plane.dim.inner_stride),
    )


def _block_ids(memory: KVMemory, part: SlabPart, device: Any) -> Iterator[Any]:
    """For each layer, the blocks that hold the tokens, on the device; layers that share a table share the copy."""
    seen: dict[tuple[int, Span], Any] = {}
    for layer, table in zip(part.layers, part.block_tables, strict=True):
        wanted = blocks_of(memory.regions[layer], part.tokens)
        key = (id(table), wanted)
        if key not in seen:
            seen[key] = torch.tensor(table[wanted.start : wanted.stop], dtype=torch.int64).to(device, non_blocking=True)
        yield seen[key]
