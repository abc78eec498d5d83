"""Which codec carries most KV to one peer: the slowest of encoding, wire and decoding decides.

Raw is preferred wherever coding gains little: it leaves the engine its cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RAW = "raw"
AUTO = "auto"
MARGIN = 1.15
"""Another codec must be this much faster than the present one."""
DWELL_SLABS = 8
"""Slabs between two changes. The first change waits for nothing."""
WAITING_S = 0.05
"""The wire is short when what is ready would take it this long."""
BUSY_SHARE, BUSY_SHARE_CODED = 0.8, 0.5
"""It is short too when raw KV would keep it busy for this share of the time; below the second, coding ends again."""
MB = 1e6


@dataclass(frozen=True, slots=True)
class Speed:
    """One codec towards one peer: bytes of KV per second, 0 for unknown; `ratio` is KV bytes per encoded byte."""

    encode_bytes_per_s: float
    decode_bytes_per_s: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Wire:
    """The way to one peer.

    bytes_per_s: encoded bytes it carries; None while unknown.
    busy_share: share of the time, 0 to 1, with a write in flight.
    work_s_per_byte: seconds of the thread that also encodes, for each encoded byte written.
    waiting_bytes: KV that is ready and not yet sent.
    """

    bytes_per_s: float | None
    busy_share: float
    work_s_per_byte: float
    waiting_bytes: int


def stages(speed: Speed, wire: Wire) -> dict[str, float]:
    """Seconds that each stage takes for one byte of KV.

    One thread encodes and drives the transport, and the peer's does the same on its side; hence `work_s_per_byte` in
    both. Where the transport is copying by that thread, as over loopback, coding only adds to its work.
    """
    work_s = wire.work_s_per_byte / speed.ratio
    return {
        "encoding": (1 / speed.encode_bytes_per_s if speed.encode_bytes_per_s else 0.0) + work_s,
        "the wire": 1 / (wire.bytes_per_s * speed.ratio) if wire.bytes_per_s else 0.0,
        "decoding": (1 / speed.decode_bytes_per_s if speed.decode_bytes_per_s else 0.0) + work_s,
    }


class CodecChoice:
    """The codec towards one peer, which outlives its transfers. `reason` says in words why it is `codec`."""

    def __init__(self) -> None:
        self.codec = RAW
        self.reason = "nothing has been sent yet"
        self._age_slabs = DWELL_SLABS

    def decide(self, speeds: Mapping[str, Speed], wire: Wire) -> bool:
        """Choose among `speeds` for the next slab; True when that is another codec than for the last one."""
        self._age_slabs += 1
        if self.codec not in speeds:
            fallback = RAW if RAW in speeds else next(iter(speeds))
            return self._become(fallback, f"{self.codec} is not agreed with this peer")
        codec, reason = self._wanted(speeds, wire)
        if codec == self.codec:
            self.reason = reason
            return False
        return self._age_slabs >= DWELL_SLABS and self._become(codec, reason)

    def force(self, setting: str, agreed: Mapping[str, object]) -> bool:
        """Take the codec that the configuration names, or raw where the peer lacks it; True when that is a change.

        Refusing such a peer would make every request be computed twice for a setting that only concerns speed, and
        would break a rolling upgrade, in which peers with and without a codec meet. Whoever set it is warned.
        """
        if setting in agreed:
            return self._become(setting, "set by the configuration")
        fallback = RAW if RAW in agreed else next(iter(agreed))
        return self._become(fallback, f"the configuration says {setting}, which this peer does not have")

    def _become(self, codec: str, reason: str) -> bool:
        changed, self.codec, self.reason = codec != self.codec, codec, reason
        self._age_slabs = 0 if changed else self._age_slabs
        return changed

    def _wanted(self, speeds: Mapping[str, Speed], wire: Wire) -> tuple[str, str]:
        if len(speeds) == 1:
            return self.codec, "no other codec is agreed with this peer"
        if wire.bytes_per_s is None:
            return self.codec, "the wire is not measured yet, or too fast to be"
        if RAW in speeds and not self._short(speeds[self.codec].ratio, wire):
            return RAW, f"nothing waits for the wire, which is busy {wire.busy_share:.0%} of the time"
        seconds = {codec: stages(speed, wire) for codec, speed in speeds.items()}
        rates = {codec: 1 / max(*stage.values(), 1e-15) for codec, stage in seconds.items()}
        chosen = self._fastest(rates)
        slowest = max(seconds[self.codec], key=seconds[self.codec].__getitem__)
        is_slowest = f"{slowest} is the slowest stage at {rates[self.codec] / MB:.1f} MB/s"
        return chosen, f"{is_slowest}; {chosen} carries {rates[chosen] / MB:.1f} MB/s of KV"

    def _short(self, ratio: float, wire: Wire) -> bool:
        """True when the wire, not the engine, decides when KV arrives."""
        least = BUSY_SHARE if self.codec == RAW else BUSY_SHARE_CODED
        return wire.waiting_bytes >= WAITING_S * (wire.bytes_per_s or 0.0) or wire.busy_share * ratio >= least

    def _fastest(self, rates: Mapping[str, float]) -> str:
        best = max(rates, key=rates.__getitem__)
        if rates[best] >= MARGIN * rates[self.codec]:
            return best
        return RAW if rates.get(RAW, 0.0) >= rates[self.codec] else self.codec
