"""What one codec has done so far to this engine's KV."""

from __future__ import annotations

MEMORY_BYTES = 16 << 20
SAFETY = 0.95
BACK_OFF = 0.9
RECOVERY = 0.05


class CodecRecord:
    """Speeds in bytes of KV per second, `ratio` in bytes of KV per encoded byte; recent slabs count most."""

    def __init__(self, encode_bytes_per_s: float, decode_bytes_per_s: float, ratio: float) -> None:
        self.encode_bytes_per_s = encode_bytes_per_s
        self.decode_bytes_per_s = decode_bytes_per_s
        self.ratio = ratio
        self._safety = SAFETY

    @property
    def expansion(self) -> float:
        """Bytes of KV to put into a slab for each byte of its slot, at least 1: it should just fit."""
        return max(1.0, self.ratio * self._safety)

    def encoded(self, raw_bytes: int, encoded_bytes: int, seconds: float) -> None:
        """One slab was encoded."""
        weight = raw_bytes / (raw_bytes + MEMORY_BYTES)
        self.encode_bytes_per_s += (raw_bytes / max(seconds, 1e-9) - self.encode_bytes_per_s) * weight
        self.ratio += (raw_bytes / max(encoded_bytes, 1) - self.ratio) * weight
        self._safety += (SAFETY - self._safety) * RECOVERY

    def decoded(self, raw_bytes: int, seconds: float) -> None:
        """One slab was decoded."""
        weight = raw_bytes / (raw_bytes + MEMORY_BYTES)
        self.decode_bytes_per_s += (raw_bytes / max(seconds, 1e-9) - self.decode_bytes_per_s) * weight

    def overflowed(self) -> None:
        """A slab did not fit its slot: put less into the next ones."""
        self._safety *= BACK_OFF
