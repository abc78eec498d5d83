"""Which codec carries most KV to one peer: the slowest of encoding, wire and decoding decides.

That is a prediction. Once a codec is in use, what it really carries decides: no model knows how much the stages take of
each other's cores, caches and memory. Raw is preferred wherever coding gains little: it leaves the engine its cores.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

RAW = "raw"
AUTO = "auto"
MARGIN, MARGIN_CODED = 1.15, 1.05
"""Another codec must be this much faster than the present one; the second when both are coded forms."""
WORSE = 0.85
"""A coded form that carries less than this share of what raw carried is ruled out."""
DWELL_SLABS, QUIET_SLABS = 8, 32
"""Slabs between two changes, the first of which waits for nothing; slabs without need before coding ends."""
WAITING_S = 0.05
"""The wire is short when what is ready would take it this long."""
BUSY_SHARE, BUSY_SHARE_CODED = 0.8, 0.5
"""It is short too when raw KV would keep it busy for this share of the time; below the second, coding ends again."""
MB = 1e6


class Cause(enum.StrEnum):
    """Why a codec was chosen, in a few words that a metric can bear as a label."""

    UNUSED = "unused"
    CONFIGURED = "configured"
    NOT_AGREED = "not_agreed"
    NO_OTHER = "no_other"
    WIRE_UNKNOWN = "wire_unknown"
    WIRE_IDLE = "wire_idle"
    CARRIES_MOST = "carries_most"
    CARRIED_LESS = "other_carried_less"


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
    waiting_bytes: KV that is ready and not yet sent.
    measured: encoded bytes per second that it carried with each codec tried of late.
    """

    bytes_per_s: float | None
    busy_share: float
    waiting_bytes: int
    measured: Mapping[str, float] = field(default_factory=dict)


def stages(speed: Speed, bytes_per_s: float) -> dict[str, float]:
    """Bytes of KV per second that each stage can do; unknown ones are left out."""
    rates = {
        "encoding": speed.encode_bytes_per_s,
        "the wire": bytes_per_s * speed.ratio,
        "decoding": speed.decode_bytes_per_s,
    }
    return {stage: rate for stage, rate in rates.items() if rate}


class CodecChoice:
    """The codec towards one peer, which outlives its transfers. `cause` and `reason` say why it is `codec`."""

    def __init__(self) -> None:
        self.codec = RAW
        self.cause, self.reason = Cause.UNUSED, "nothing has been sent yet"
        self._age_slabs = DWELL_SLABS
        self._quiet_slabs = 0

    def decide(self, speeds: Mapping[str, Speed], wire: Wire) -> bool:
        """Choose among `speeds` for the next slab; True when that is another codec than for the last one."""
        self._age_slabs += 1
        if self.codec not in speeds:
            fallback = RAW if RAW in speeds else next(iter(speeds))
            return self._become(fallback, Cause.NOT_AGREED, f"{self.codec} is not agreed with this peer")
        codec, cause, reason = self._wanted(speeds, wire)
        return (codec == self.codec or self._age_slabs >= DWELL_SLABS) and self._become(codec, cause, reason)

    def force(self, setting: str, agreed: Mapping[str, object]) -> bool:
        """Take the codec that the configuration names, or raw where the peer lacks it; True when that is a change.

        Refusing such a peer would make every request be computed twice for a setting that only concerns speed, and
        would break a rolling upgrade, in which peers with and without a codec meet. Whoever set it is warned.
        """
        if setting in agreed:
            return self._become(setting, Cause.CONFIGURED, "set by the configuration")
        fallback = RAW if RAW in agreed else next(iter(agreed))
        reason = f"the configuration says {setting}, which this peer does not have"
        return self._become(fallback, Cause.NOT_AGREED, reason)

    def _become(self, codec: str, cause: Cause, reason: str) -> bool:
        changed = codec != self.codec
        self.codec, self.cause, self.reason = codec, cause, reason
        self._age_slabs = 0 if changed else self._age_slabs
        return changed

    def _wanted(self, speeds: Mapping[str, Speed], wire: Wire) -> tuple[str, Cause, str]:
        if len(speeds) == 1:
            return self.codec, Cause.NO_OTHER, "no other codec is agreed with this peer"
        if wire.bytes_per_s is None:
            return self.codec, Cause.WIRE_UNKNOWN, "the wire is not known yet, or too fast to be measured"
        short = self._short(speeds[self.codec].ratio, wire, wire.bytes_per_s)
        self._quiet_slabs = 0 if short else self._quiet_slabs + 1
        if RAW in speeds and self._quiet_slabs > (0 if self.codec == RAW else QUIET_SLABS):
            reason = f"nothing waits for the wire, which is busy {wire.busy_share:.0%} of the time"
            return RAW, Cause.WIRE_IDLE, reason
        return self._compare(speeds, wire.bytes_per_s, wire.measured)

    def _compare(
        self, speeds: Mapping[str, Speed], bytes_per_s: float, measured: Mapping[str, float]
    ) -> tuple[str, Cause, str]:
        by_stage = {codec: stages(speed, bytes_per_s) for codec, speed in speeds.items()}
        rates = {codec: min(rates_of.values()) for codec, rates_of in by_stage.items()}
        worse = _worse_than_raw(speeds, measured)
        if worse:
            rates |= worse | {RAW: max(rates[RAW], measured[RAW])}
        chosen = self._fastest(rates)
        other = max((codec for codec in rates if codec != chosen), key=rates.__getitem__)
        other = other if chosen == self.codec else self.codec
        better, slower = rates[chosen] / MB, rates[other] / MB
        if other in worse:
            reason = f"{chosen} carried {better:.1f} MB/s of KV, {other} {slower:.1f}"
            return chosen, Cause.CARRIED_LESS, reason
        slowest = min(by_stage[other], key=by_stage[other].__getitem__)
        is_slowest = f"{slowest} is the slowest stage at {slower:.1f} MB/s"
        return chosen, Cause.CARRIES_MOST, f"{is_slowest}; {chosen} carries {better:.1f} MB/s of KV"

    def _short(self, ratio: float, wire: Wire, bytes_per_s: float) -> bool:
        """True when the wire, not the engine, decides when KV arrives."""
        least = BUSY_SHARE if self.codec == RAW else BUSY_SHARE_CODED
        return wire.waiting_bytes >= WAITING_S * bytes_per_s or wire.busy_share * ratio >= least

    def _fastest(self, rates: Mapping[str, float]) -> str:
        best = max(rates, key=rates.__getitem__)
        margin = MARGIN if RAW in (best, self.codec) else MARGIN_CODED
        if rates[best] >= margin * rates[self.codec]:
            return best
        return RAW if rates.get(RAW, 0.0) >= rates[self.codec] else self.codec


def _worse_than_raw(speeds: Mapping[str, Speed], measured: Mapping[str, float]) -> dict[str, float]:
    """Coded forms that carried clearly less KV than raw when the wire was full; bytes of KV per second.

    No more is taken from what was measured: samples of different moments do not tell coded forms apart.
    """
    carried = {codec: measured[codec] * speed.ratio for codec, speed in speeds.items() if codec in measured}
    return {codec: rate for codec, rate in carried.items() if codec != RAW and rate < WORSE * carried.get(RAW, 0.0)}
