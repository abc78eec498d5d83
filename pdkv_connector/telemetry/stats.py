"""What a runtime has moved so far, and how: a snapshot for the engine's statistics and for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Traffic:
    """Slabs that went one way; `raw_bytes` of KV travelled as `encoded_bytes`."""

    slabs: int = 0
    raw_bytes: int = 0
    encoded_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Bytes of KV per byte on the wire; 1 when nothing has moved."""
        return self.raw_bytes / self.encoded_bytes if self.encoded_bytes else 1.0

    def plus(self, raw_bytes: int, encoded_bytes: int) -> Traffic:
        """One slab more."""
        return Traffic(self.slabs + 1, self.raw_bytes + raw_bytes, self.encoded_bytes + encoded_bytes)


@dataclass(frozen=True, slots=True)
class PeerStats:
    """One consumer that this producer sends to.

    name: what the peer calls itself.
    codec, cause, reason: of its last slab; `cause` is one of a few words, `reason` a sentence.
    goodput_bytes_per_s: encoded bytes while writes are in flight; None while unknown.
    busy_share: recent share of the time with a write in flight, 0 to 1.
    sent: slabs by their first write; resends: writes of slabs written before.
    """

    name: str
    codec: str
    cause: str
    reason: str
    goodput_bytes_per_s: float | None
    busy_share: float
    sent: Traffic
    resends: int


@dataclass(frozen=True, slots=True)
class CodecStats:
    """One codec: bytes of KV and the seconds it took for them, in each direction.

    overflows: slabs that did not fit a slot and were planned again, smaller.
    """

    codec: str
    encode_bytes: int = 0
    encode_s: float = 0.0
    decode_bytes: int = 0
    decode_s: float = 0.0
    overflows: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """Since the start of the process; peers that were forgotten are still part of `sent`.

    counts: how often what has happened, by series name (`telemetry.metrics`).
    backlog_bytes: KV that is computed, asked for and not yet sent.
    """

    peers: tuple[PeerStats, ...]
    codecs: tuple[CodecStats, ...]
    sent: Traffic
    received: Traffic
    counts: Mapping[str, int] = field(default_factory=dict)
    backlog_bytes: int = 0
