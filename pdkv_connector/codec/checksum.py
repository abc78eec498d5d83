"""Checksums of encoded bytes, where they lie: xxh3 in host memory, a weighted sum of bytes on a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import xxhash

from pdkv_connector.codec.base import Buffer

NONE = 0
"""Stands for no checksum: it is turned off, or the receiver's memory is of another kind than the sender's."""


class Checksum(Protocol):
    """One kind of checksum, over uint8 arrays of one kind of device."""

    def of(self, data: Buffer) -> int:
        """Never `NONE`."""


class HostChecksum:
    """xxh3 of 64 bits."""

    def of(self, data: Buffer) -> int:
        return int(xxhash.xxh3_64_intdigest(data.data)) or 1


class DeviceChecksum:
    """A sum of bytes modulo 2^32, each times an odd number: one that changed always shows. It waits for the device."""

    def of(self, data: Any) -> int:
        import torch

        from pdkv_kernels.checksum import checksum

        out = torch.zeros(1, dtype=torch.int32, device=data.device)
        checksum(data, out)
        return int(out.item()) & 0xFFFFFFFF | 1 << 32


def create_checksum(kind: str) -> Checksum:
    """For slots in memory of this kind of device, `cpu` or `cuda`."""
    return HostChecksum() if kind == "cpu" else DeviceChecksum()
