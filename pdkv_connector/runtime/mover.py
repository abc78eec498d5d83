"""Moves slabs between the engine's blocks and ring slots: codec, checksum, and the device's stream."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import xxhash

from pdkv_connector.codec.base import Codec, KVMemory, SlabPart
from pdkv_connector.codec.digest import layer_digests
from pdkv_connector.codec.registry import create_codec
from pdkv_connector.errors import ProtocolError
from pdkv_connector.runtime.ring_buffer import RingBuffer

NO_CHECKSUM = 0


class Mover:
    """`encode` and `decode` block the calling thread, never the engine's.

    On a GPU the work runs on a stream of its own; `wait_for` makes it start after the engine's event. Checksums cover
    encoded bytes in host memory; on a GPU they are left out.
    """

    def __init__(self, memory: KVMemory, device: str, codecs: tuple[str, ...], integrity: bool) -> None:
        kind = device.split(":", maxsplit=1)[0]
        self.memory = memory
        self._codecs: dict[str, Codec] = {name: create_codec(name, kind) for name in codecs}
        self._raw = create_codec("raw", kind)
        self._checksums = integrity and kind == "cpu"
        self._stream = _own_stream(device) if kind == "cuda" else None
        for codec in self._codecs.values():
            if warm_up := getattr(codec, "warm_up", None):
                warm_up(memory)

    def wait_for(self, event: Any) -> None:
        """Let later work start only after a CUDA event of the engine's stream; None needs no wait."""
        if event is not None and self._stream is not None:
            self._stream.wait_event(event)

    def encode(self, codec: str, part: SlabPart, ring: RingBuffer, slot: int) -> tuple[int, int]:
        """Gather `part` into a send slot; returns its length in bytes and its checksum. Raises LayoutError."""
        with self._on_stream():
            num_bytes = self._codecs[codec].encode(self.memory, part, ring.view(slot, ring.slot_bytes))
        self._synchronize()
        return num_bytes, self._checksum(ring, slot, num_bytes)

    def decode(self, codec: str, part: SlabPart, ring: RingBuffer, slot: int, num_bytes: int, checksum: int) -> None:
        """Scatter a receive slot into `part`. Raises ProtocolError when it is damaged or does not fit."""
        if self._checksums and checksum != NO_CHECKSUM and checksum != self._checksum(ring, slot, num_bytes):
            raise ProtocolError(f"checksum differs over {num_bytes} bytes in slot {slot}")
        with self._on_stream():
            self._codecs[codec].decode(self.memory, part, ring.view(slot, num_bytes))
        self._synchronize()

    def digest(self, part: SlabPart) -> list[str]:
        """One digest per layer of `part`, of the KV as it lies in the engine's blocks. Raises LayoutError."""
        with self._on_stream():
            return layer_digests(self.memory, self._raw, part.layers, part.block_tables, part.tokens, part.heads)

    def _checksum(self, ring: RingBuffer, slot: int, num_bytes: int) -> int:
        if not self._checksums:
            return NO_CHECKSUM
        return xxhash.xxh3_64_intdigest(ring.view(slot, num_bytes).data) or 1

    def _on_stream(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            return nullcontext()
        import torch

        stream: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return stream

    def _synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


def _own_stream(device: str) -> Any:
    import torch

    return torch.cuda.Stream(device=device)
