"""The cascade codecs on host memory: gather in wire order, code; decode, scatter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pdkv_connector.codec.base import Buffer, KVMemory, SlabPart
from pdkv_connector.codec.cascade import Cascade
from pdkv_connector.codec.cascade_format import DTYPES, Section
from pdkv_connector.codec.host_view import flat_bytes
from pdkv_connector.codec.raw import RawCodec
from pdkv_connector.codec.slab_shape import slab_bytes
from pdkv_connector.errors import LayoutError

WARM_UP_TOKENS, WARM_UP_DIMS = 64, 64


def sections_of(memory: KVMemory, part: SlabPart) -> list[Section]:
    """The slab's segments, a section a layer. Raises LayoutError for a dtype without a codec."""
    sections = []
    for layer in part.layers:
        region = memory.regions[layer]
        if region.dtype not in DTYPES:
            raise LayoutError(
                f"KV of dtype {region.dtype!r} has no coded form; use codec raw, or one of {sorted(DTYPES)}"
            )
        num_segments = len(region.planes) * len(part.heads)
        sections.append(Section(DTYPES[region.dtype], num_segments, len(part.tokens), region.head_dim))
    return sections


class CascadeCodec:
    """Codes host KV of any region without holding the GIL. One caller at a time; it may use `num_threads`."""

    def __init__(self, name: str, width: int, num_threads: int = 1) -> None:
        self.name = name
        self._raw = RawCodec()
        self._cascade = Cascade(width, num_threads)
        self._scratch: NDArray[np.uint8] = np.empty(0, np.uint8)

    def warm_up(self, memory: KVMemory | None = None) -> None:
        """Compile the loops for the element sizes of `memory`, else for all. Raises LayoutError if it does not fit."""
        self._raw.warm_up(memory)
        names = {region.dtype for region in memory.regions} if memory else set(DTYPES)
        for numbers in {DTYPES[name] for name in names if name in DTYPES}:
            section = Section(numbers, 1, WARM_UP_TOKENS, WARM_UP_DIMS)
            raw, out = np.zeros(section.raw_bytes, np.uint8), np.empty(section.raw_bytes, np.uint8)
            num_bytes = self._cascade.encode(raw, [section], out)
            self._cascade.decode(out[:num_bytes], [section], raw)

    def max_encoded_bytes(self, memory: KVMemory, part: SlabPart) -> int:
        return slab_bytes(memory, part)

    def encode(self, memory: KVMemory, part: SlabPart, out: Buffer) -> int:
        """Gather and code `part` into `out`, uint8; returns the bytes written. Raises LayoutError, SlabTooLarge."""
        sections = sections_of(memory, part)
        raw = self._room(slab_bytes(memory, part))
        self._raw.encode(memory, part, raw)
        return self._cascade.encode(raw, sections, flat_bytes(out))

    def decode(self, memory: KVMemory, part: SlabPart, payload: Buffer) -> None:
        """Decode `payload` into the blocks of `part`. Raises ProtocolError for a bad one, LayoutError."""
        total, data = slab_bytes(memory, part), flat_bytes(payload)
        if data.size != total:
            sections, coded = sections_of(memory, part), data
            data = self._room(total)
            self._cascade.decode(coded, sections, data)
        self._raw.decode(memory, part, data)

    def _room(self, num_bytes: int) -> NDArray[np.uint8]:
        if self._scratch.size < num_bytes:
            self._scratch = np.empty(num_bytes, np.uint8)
        return self._scratch[:num_bytes]
