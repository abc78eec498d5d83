"""Which codec does the next slab take, how much KV, how long will it all take? Whoever measures the wire answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pdkv_connector.session.actions import LegKey


@dataclass(frozen=True, slots=True)
class Load:
    """Where a leg stands, in bytes of KV before encoding.

    slot_bytes: what a slot of this leg holds.
    waiting_bytes: computed and not yet sent.
    moving_bytes: being gathered or written.
    """

    slot_bytes: int
    waiting_bytes: int
    moving_bytes: int


@dataclass(frozen=True, slots=True)
class Advice:
    """Put at most `raw_bytes` of KV into the next slab and encode them with `codec`."""

    codec: str
    raw_bytes: int


class CodecAdvisor(Protocol):
    """What a producer session asks before each slab."""

    def advise(self, leg: LegKey, decoders: Mapping[str, int], load: Load, now: float) -> Advice | None:
        """The next slab of `leg`, or None to wait until one that is moving has been written.

        decoders: the codecs agreed with the peer and the bytes of KV per second it decodes with each (0: unknown).
        The advice names one of them. None is allowed only while `moving_bytes` is above 0.
        """

    def predicted_s(self, leg: LegKey, num_bytes: int) -> float:
        """Seconds that `num_bytes` of KV need to reach the peer of `leg`; 0 when nothing is known of the wire."""
