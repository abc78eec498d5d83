"""Chooses the codec of each slab from what it sees of wires and codecs, and counts what goes over them."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from pdkv_connector.policy.codec_choice import AUTO, RAW, CodecChoice, Speed, Wire
from pdkv_connector.policy.codec_record import CodecRecord
from pdkv_connector.policy.wire_meter import WireMeter
from pdkv_connector.rare_log import RareLog
from pdkv_connector.session.actions import LegKey, SlabKey, Write
from pdkv_connector.session.codec_advisor import Advice, Load
from pdkv_connector.telemetry.stats import CodecStats, PeerStats, Stats, Traffic
from pdkv_connector.telemetry.timeline_writer import TimelineWriter
from pdkv_connector.types import PeerId

logger = logging.getLogger(__name__)


class _Peer:
    """What is known of one consumer, for as long as its connection lasts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.meter = WireMeter()
        self.choice = CodecChoice()
        self.sent = Traffic()
        self.resends = 0
        self.warned = False

    def stats(self) -> PeerStats:
        choice, meter = self.choice, self.meter
        return PeerStats(
            self.name,
            choice.codec,
            choice.cause,
            choice.reason,
            meter.bytes_per_s,
            meter.busy_share,
            self.sent,
            self.resends,
        )


class Advisor:
    """The sessions' `CodecAdvisor`. `setting` is the configured codec; `records` has one entry for each codec there is.

    Fed by the runtime's thread; `stats` may be called by any.
    """

    def __init__(self, setting: str, records: Mapping[str, CodecRecord], timeline: TimelineWriter) -> None:
        self._setting = setting
        self._records = records
        self._timeline = timeline
        self._lock = threading.Lock()
        self._peers: dict[PeerId, _Peer] = {}
        self._codecs = {codec: CodecStats(codec) for codec in records}
        self._sent = self._received = Traffic()
        self._lacking = RareLog(logger)

    # -- the session's questions --------------------------------------------------------------------------------------

    def advise(self, leg: LegKey, decoders: Mapping[str, int], load: Load, now: float) -> Advice | None:
        """See `CodecAdvisor`."""
        with self._lock:
            peer = self._peers[leg.peer]
            undecided = self._setting == AUTO and len(decoders) > 1
            limit_bytes = peer.meter.limit_bytes if undecided else math.inf
            if load.moving_bytes > limit_bytes / 2:
                return None
            before = peer.choice.codec
            changed = self._choose(peer, decoders, _waiting_bytes(load), now)
            codec = peer.choice.codec
            fits = load.slot_bytes * self._records[codec].expansion if codec != RAW else load.slot_bytes
            lacking = self._setting not in (AUTO, codec) and not peer.warned
            peer.warned |= lacking
        if changed or lacking:
            self._tell(peer, leg, before, self._lacking.warning if lacking else logger.info)
        return Advice(codec, int(min(fits, limit_bytes)))

    def _choose(self, peer: _Peer, decoders: Mapping[str, int], waiting_bytes: int, now: float) -> bool:
        if self._setting != AUTO:
            return peer.choice.force(self._setting, decoders)
        speeds = {
            codec: Speed(self._records[codec].encode_bytes_per_s, decode_bytes_per_s, self._records[codec].ratio)
            for codec, decode_bytes_per_s in decoders.items()
        }
        meter = peer.meter
        bytes_per_s = meter.bytes_per_s if meter.known else None
        return peer.choice.decide(speeds, Wire(bytes_per_s, meter.busy_share, waiting_bytes, meter.measured(now)))

    def _tell(self, peer: _Peer, leg: LegKey, before: str, log: Callable[..., None]) -> None:
        codec, reason = peer.choice.codec, peer.choice.reason
        log("codec for %s: %s -> %s: %s", peer.name, before, codec, reason)
        self._timeline.note("producer", "codec", leg.transfer_id, peer=peer.name, codec=codec, reason=reason)

    def predicted_s(self, leg: LegKey, num_bytes: int) -> float:
        """See `CodecAdvisor`."""
        with self._lock:
            peer = self._peers.get(leg.peer)
            bytes_per_s = peer.meter.bytes_per_s if peer else None
            if peer is None or not bytes_per_s:
                return 0.0
            return num_bytes / (bytes_per_s * self._records[peer.choice.codec].ratio)

    # -- what the runtime saw -----------------------------------------------------------------------------------------

    def met(self, peer: PeerId, name: str) -> None:
        """A consumer has greeted, or has greeted again: what is known of its wire still holds."""
        with self._lock:
            self._peers.setdefault(peer, _Peer(name)).name = name

    def forget(self, peer: PeerId) -> None:
        """The consumer is gone."""
        with self._lock:
            self._peers.pop(peer, None)

    def started(self, write: Write, now: float) -> None:
        """A write began."""
        with self._lock:
            if peer := self._peers.get(write.key.leg.peer):
                num_bytes = write.header.encoded_bytes
                peer.meter.started(write.key, write.header.codec, num_bytes, now)
                if write.attempt > 1:
                    peer.resends += 1
                else:
                    peer.sent = peer.sent.plus(write.raw_bytes, num_bytes)
                    self._sent = self._sent.plus(write.raw_bytes, num_bytes)

    def ended(self, key: SlabKey, arrived: bool, now: float) -> None:
        """A write ended."""
        with self._lock:
            if peer := self._peers.get(key.leg.peer):
                peer.meter.ended(key, arrived, now)

    def encoded(self, codec: str, raw_bytes: int, encoded_bytes: int, seconds: float) -> None:
        """A slab was gathered and encoded."""
        with self._lock:
            self._records[codec].encoded(raw_bytes, encoded_bytes, seconds)
            old = self._codecs[codec]
            self._codecs[codec] = replace(
                old, encode_bytes=old.encode_bytes + raw_bytes, encode_s=old.encode_s + seconds
            )

    def overflowed(self, codec: str) -> None:
        """A slab did not fit its slot."""
        with self._lock:
            self._records[codec].overflowed()
            old = self._codecs[codec]
            self._codecs[codec] = replace(old, overflows=old.overflows + 1)

    def decoded(self, codec: str, raw_bytes: int, encoded_bytes: int, seconds: float) -> None:
        """A slab was decoded and scattered."""
        with self._lock:
            self._received = self._received.plus(raw_bytes, encoded_bytes)
            old = self._codecs[codec]
            self._codecs[codec] = replace(
                old, decode_bytes=old.decode_bytes + raw_bytes, decode_s=old.decode_s + seconds
            )

    def stats(self) -> Stats:
        """Everything so far. Thread-safe; takes microseconds."""
        with self._lock:
            peers = tuple(peer.stats() for peer in self._peers.values())
            return Stats(peers, tuple(self._codecs.values()), self._sent, self._received)


def _waiting_bytes(load: Load) -> int:
    """KV that waits for the wire; a slab or two may just have been computed, and then wait for nothing."""
    return load.waiting_bytes if load.moving_bytes or load.waiting_bytes >= 2 * load.slot_bytes else 0
