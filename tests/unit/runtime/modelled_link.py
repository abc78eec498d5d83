"""A producer, a wire and a consumer as arithmetic: what the advisor's choices come to in seconds."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

from pdkv_connector.policy.codec_record import CodecRecord
from pdkv_connector.runtime.advisor import Advisor
from pdkv_connector.session.actions import LegKey, SlabKey, Write
from pdkv_connector.session.codec_advisor import Advice, Load
from pdkv_connector.session.messages import RingSpec, Slab
from pdkv_connector.telemetry.timeline_writer import TimelineWriter
from pdkv_connector.types import Credit, Span

SLOT_BYTES = 2 << 20
WINDOW = 8
POLL_S = 0.001
LAYER_BYTES = 768 << 10
RING = RingSpec(0, SLOT_BYTES, WINDOW, 0, "DRAM")
_numbers = itertools.count()


@dataclass(frozen=True)
class Coder:
    """Bytes of KV per second, and KV bytes per encoded byte."""

    encode: float
    decode: float
    ratio: float


CODERS = {"raw": Coder(10e9, 10e9, 1.0), "split": Coder(1.4e9, 2.4e9, 1.49), "pack4": Coder(3e9, 4e9, 1.33)}


def new_advisor(setting: str = "auto", optimism: float = 1.5) -> Advisor:
    """An advisor whose first guesses of all speeds are too high."""
    records = {
        name: CodecRecord(coder.encode * optimism, coder.decode * optimism, coder.ratio)
        for name, coder in CODERS.items()
    }
    advisor = Advisor(setting, records, TimelineWriter(""))
    advisor.met("peer", "D rank 0")
    return advisor


@dataclass
class ModelledLink:
    """`rate` encoded bytes per second. `copy_s` per encoded byte is work for the threads of both sides: loopback.

    After a pause a shaper lets `burst_bytes` through at once. `opening_s` is what the very first write takes longer.
    """

    advisor: Advisor
    rate: float
    copy_s: float = 0.0
    burst_bytes: float = 0.0
    opening_s: float = 0.0
    now: float = field(default=1000.0, init=False)
    codecs: list[str] = field(default_factory=list, init=False)
    _tokens: float = field(default=0.0, init=False)
    _wire_free_at: float = field(default=0.0, init=False)
    _decoder_free_at: float = field(default=0.0, init=False)

    def rest(self, seconds: float) -> None:
        self.now += seconds

    def transfer(self, num_bytes: int, produced_per_s: float = 0.0) -> float:
        """Seconds until `num_bytes` of KV are decoded at the other side; 0 means that they are all there already."""
        begun, sent, flying = self.now, 0, deque[tuple[SlabKey, float, float]]()
        while sent < num_bytes or flying:
            while flying and flying[0][1] <= self.now:
                self.advisor.ended(flying.popleft()[0], True, self.now)
            layers = int((self.now - begun) * produced_per_s / LAYER_BYTES) if produced_per_s else num_bytes
            ready = min(num_bytes, layers * LAYER_BYTES) - sent
            moving = sum(slot[2] for slot in flying)
            advice = self._advice(ready, int(moving)) if ready and len(flying) < WINDOW else None
            if advice is None:
                self.now += POLL_S
                continue
            raw_bytes = min(ready, advice.raw_bytes)
            sent += raw_bytes
            flying.append(self._send(advice.codec, raw_bytes))
        return max(self.now, self._decoder_free_at) - begun

    def _advice(self, waiting: int, moving: int) -> Advice | None:
        decoders = {name: int(coder.decode) for name, coder in CODERS.items()}
        return self.advisor.advise(LegKey("t", "peer", 1), decoders, Load(SLOT_BYTES, waiting, moving), self.now)

    def _send(self, codec: str, raw_bytes: int) -> tuple[SlabKey, float, float]:
        """Key, time of arrival, bytes of KV."""
        coder = CODERS[codec]
        encoded_bytes = int(raw_bytes / coder.ratio)
        encode_s = raw_bytes / coder.encode
        self.now += encode_s
        self.codecs.append(codec)
        self.advisor.encoded(codec, raw_bytes, encoded_bytes, encode_s)
        key = SlabKey(LegKey("t", "peer", 1), next(_numbers))
        header = Slab("t", 1, key.seq, 0, Span(0, 1), Span(0, 1), Credit(0, 0), codec, encoded_bytes, 0)
        self.advisor.started(Write(key, 0, RING, header, raw_bytes, 1), self.now)
        self.now += encoded_bytes * self.copy_s
        arrived_at = self._cross(encoded_bytes)
        self._decoder_free_at = (
            max(self._decoder_free_at, arrived_at) + raw_bytes / coder.decode + encoded_bytes * self.copy_s
        )
        return key, arrived_at if not self.copy_s else self._decoder_free_at, raw_bytes

    def _cross(self, num_bytes: int) -> float:
        start = max(self.now, self._wire_free_at)
        self._tokens = min(self.burst_bytes, self._tokens + (start - self._wire_free_at) * self.rate)
        at_once = min(self._tokens, num_bytes)
        self._tokens -= at_once
        self._wire_free_at = start + (num_bytes - at_once) / self.rate + self.opening_s
        self.opening_s = 0.0
        return self._wire_free_at
