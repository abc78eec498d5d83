"""Damage on purpose, for negative controls: one byte of one slab changes after the wire, before the scatter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VARIABLE = "PDKV_TEST_FLIP_SLAB"
BYTE, HUGE = 3, 0x7F
"""The highest byte of the first little-endian float32, and what makes that number about 1e38."""


def apply(environ: Mapping[str, str]) -> None:
    """With `PDKV_TEST_FLIP_SLAB=n` in the environment, the n-th slab this process decodes is damaged."""
    if VARIABLE not in environ:
        return
    from pdkv_connector.runtime.mover import Mover

    whole = Mover.decode
    victim, seen = int(environ[VARIABLE]), [0]

    def decode(self: Mover, codec: str, part: Any, ring: Any, slot: int, num_bytes: int, checksum: int) -> None:
        if seen[0] == victim:
            ring.view(slot, num_bytes)[BYTE] = HUGE
        seen[0] += 1
        whole(self, codec, part, ring, slot, num_bytes, checksum)

    Mover.decode = decode  # type: ignore[method-assign]
