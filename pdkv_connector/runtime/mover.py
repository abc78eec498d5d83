"""Moves slabs between the engine's blocks and ring slots: codec, checksum, and the device's stream."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pdkv_connector.codec import checksum as checksums
from pdkv_connector.codec.base import Codec, KVMemory, SlabPart
from pdkv_connector.codec.digest import layer_digests
from pdkv_connector.codec.registry import create_codec
from pdkv_connector.errors import ConfigError, ProtocolError
from pdkv_connector.policy.codec_choice import RAW
from pdkv_connector.runtime.calibration import calibrate
from pdkv_connector.runtime.ring_buffer import RingBuffer

logger = logging.getLogger(__name__)


class Mover:
    """`encode` and `decode` block the calling thread, never the engine's.

    On a GPU the work runs on a stream of its own; `wait_for` makes it start after the engine's event.
    """

    def __init__(
        self, memory: KVMemory, device: str, codecs: tuple[str, ...], integrity: bool, num_threads: int = 1
    ) -> None:
        kind = device.split(":", maxsplit=1)[0]
        self.memory = memory
        self._raw = create_codec(RAW, kind)
        self._checksum = checksums.create_checksum(kind) if integrity else None
        self._stream = _own_stream(device) if kind == "cuda" else None
        with self._on_stream():
            created = _create(codecs, kind, num_threads)
            self.records = calibrate(created, memory, device, self._synchronize)
            self._codecs = {name: created[name] for name in self.records}
            for codec in self._codecs.values():
                if warm_up := getattr(codec, "warm_up", None):
                    warm_up(memory)

    @property
    def codecs(self) -> tuple[str, ...]:
        """Those asked for that can code this memory, in the same order."""
        return tuple(self._codecs)

    def wait_for(self, event: Any) -> None:
        """Let later work start only after a CUDA event of the engine's stream; None needs no wait."""
        if event is not None and self._stream is not None:
            self._stream.wait_event(event)

    def encode(self, codec: str, part: SlabPart, ring: RingBuffer, slot: int, max_bytes: int) -> tuple[int, int]:
        """Gather `part` into a send slot; returns its length in bytes and its checksum.

        Raises SlabTooLarge when that would exceed `max_bytes`, and other LayoutErrors.
        """
        with self._on_stream():
            num_bytes = self._codecs[codec].encode(self.memory, part, ring.view(slot, max_bytes))
            checksum = self._checksum.of(ring.view(slot, num_bytes)) if self._checksum else checksums.NONE
        self._synchronize()
        return num_bytes, checksum

    def decode(self, codec: str, part: SlabPart, ring: RingBuffer, slot: int, num_bytes: int, checksum: int) -> None:
        """Scatter a receive slot into `part`. Raises ProtocolError when it is damaged or does not fit."""
        payload = ring.view(slot, num_bytes)
        with self._on_stream():
            if self._checksum and checksum != checksums.NONE and checksum != self._checksum.of(payload):
                raise ProtocolError(f"checksum differs over {num_bytes} bytes in slot {slot}")
            self._codecs[codec].decode(self.memory, part, payload)
        self._synchronize()

    def digest(self, part: SlabPart) -> list[str]:
        """One digest per layer of `part`, of the KV as it lies in the engine's blocks. Raises LayoutError."""
        with self._on_stream():
            return layer_digests(self.memory, self._raw, part.layers, part.block_tables, part.tokens, part.heads)

    def _on_stream(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            return nullcontext()
        import torch

        stream: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return stream

    def _synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


def _create(names: tuple[str, ...], kind: str, num_threads: int) -> dict[str, Codec]:
    """The codecs that this kind of device can run. Raises ConfigError or ImportError when raw is not among them."""
    codecs: dict[str, Codec] = {}
    for name in names:
        try:
            codecs[name] = create_codec(name, kind, num_threads)
        except (ConfigError, ImportError) as error:
            if name == RAW:
                raise
            logger.info("codec %s is not offered: %s", name, error)
    return codecs


def _own_stream(device: str) -> Any:
    import torch

    return torch.cuda.Stream(device=device)
