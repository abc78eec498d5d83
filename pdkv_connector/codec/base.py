"""The Codec protocol: paged KV in, one contiguous slab payload out, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pdkv_connector.layout.region import Region
from pdkv_connector.types import Span

Buffer = Any
"""A one-dimensional uint8 array on the device of the KV: numpy for host memory, a torch tensor for a GPU."""


@dataclass(frozen=True, slots=True)
class KVMemory:
    """An engine's KV: `regions[i]` describes `tensors[i]`, a flat view whose element 0 is the region's origin."""

    regions: tuple[Region, ...]
    tensors: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SlabPart:
    """What a slab holds, in this engine's own terms.

    layers: indices into `KVMemory.regions`, in wire order.
    block_tables: for each of `layers`, the request's block ids; entry `t // block_size` holds token `t`.
    tokens: token positions in the request; heads: local head indices.
    """

    layers: tuple[int, ...]
    block_tables: tuple[Sequence[int], ...]
    tokens: Span
    heads: Span


class Codec(Protocol):
    """Gather-and-encode on the producer, decode-and-scatter on the consumer; neither allocates when hot."""

    @property
    def name(self) -> str:
        """Name used in the handshake and in slab headers."""

    def max_encoded_bytes(self, memory: KVMemory, part: SlabPart) -> int:
        """Largest payload `encode` can produce for `part`; `block_tables` need not be filled in."""

    def encode(self, memory: KVMemory, part: SlabPart, out: Buffer) -> int:
        """Write the payload of `part` into `out`; returns its length in bytes. Raises LayoutError."""

    def decode(self, memory: KVMemory, part: SlabPart, payload: Buffer) -> None:
        """Write `payload` into the blocks of `part`. Raises ProtocolError when its length or content is wrong."""
