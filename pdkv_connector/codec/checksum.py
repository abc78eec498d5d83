"""Checksums of encoded bytes, where they lie: xxh3 in host memory, a weighted sum of bytes on a GPU.

A checksum says by its two highest bits which kind it is; who gets one of another kind cannot check it.
"""

from __future__ import annotations

from typing import Any, Protocol

import xxhash

from pdkv_connector.codec.base import Buffer

NONE = 0
_KIND_SHIFT = 62
_SUM = 1 << _KIND_SHIFT
_XXH3 = 1 << (_KIND_SHIFT + 1)


class Checksum(Protocol):
    """One kind of checksum, over uint8 arrays of one kind of device."""

    def of(self, data: Buffer) -> int:
        """Never `NONE`."""

    def same_kind(self, checksum: int) -> bool:
        """True when `of` gives checksums of this kind."""


class HostChecksum:
    """xxh3 of 64 bits, of which the highest is given up to say so."""

    def of(self, data: Buffer) -> int:
        return int(xxhash.xxh3_64_intdigest(data.data)) | _XXH3

    def same_kind(self, checksum: int) -> bool:
        return bool(checksum & _XXH3)


class DeviceChecksum:
    """A sum of bytes modulo 2^32, each times an odd number: one that changed always shows. It waits for the device."""

    def of(self, data: Any) -> int:
        import torch

        from pdkv_kernels.checksum import checksum

        out = torch.zeros(1, dtype=torch.int32, device=data.device)
        checksum(data, out)
        return int(out.item()) & 0xFFFFFFFF | _SUM

    def same_kind(self, checksum: int) -> bool:
        return checksum >> _KIND_SHIFT == 1


def create_checksum(kind: str) -> Checksum:
    """For slots in memory of this kind of device, `cpu` or `cuda`."""
    return HostChecksum() if kind == "cpu" else DeviceChecksum()
