"""Carries out what the sessions decide; each deed's outcome goes back as an event."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from pdkv_connector.codec.base import SlabPart
from pdkv_connector.codec.checksum import NONE
from pdkv_connector.codec.slab_shape import slab_bytes
from pdkv_connector.errors import LayoutError, PdkvError, ProtocolError, SlabTooLarge, TransportError
from pdkv_connector.rare_log import RareLog
from pdkv_connector.runtime.advisor import Advisor
from pdkv_connector.runtime.block_tables import BlockTables
from pdkv_connector.runtime.links import Links
from pdkv_connector.runtime.mover import Mover
from pdkv_connector.runtime.results import Results
from pdkv_connector.runtime.ring_buffer import RingBuffer
from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session.messages import encode
from pdkv_connector.telemetry.ledger import Ledger
from pdkv_connector.telemetry.timeline_writer import TimelineWriter
from pdkv_connector.transport.base import Memory, Transport

logger = logging.getLogger(__name__)

Event = ev.ProducerEvent | ev.ConsumerEvent


class Hands:
    """Owns the rings and the maps between session names and transport names. One thread."""

    def __init__(
        self,
        instance: str,
        transport: Transport,
        links: Links,
        mover: Mover,
        tables: BlockTables,
        rings: tuple[RingBuffer, RingBuffer],
        results: Results,
        timeline: TimelineWriter,
        advisor: Advisor,
        ledger: Ledger,
    ) -> None:
        self._advisor = advisor
        self._ledger = ledger
        self._instance = instance
        self._transport = transport
        self._links = links
        self._mover = mover
        self._tables = tables
        self._send_ring, self._receive_ring = rings
        self._results = results
        self._timeline = timeline
        self._writes: dict[int, act.SlabKey] = {}
        self._faults, self._damage = RareLog(logger), RareLog(logger)
        self._bad_connects, self._bad_writes, self._bad_digests = RareLog(logger), RareLog(logger), RareLog(logger)

    @property
    def num_writes(self) -> int:
        """Writes in flight."""
        return len(self._writes)

    def do(self, action: act.Action) -> Event | None:
        """Carry out one action; returns what came of it at once, if anything did. Whatever breaks costs that action."""
        handler: Callable[[Hands, Any], Event | None] = _HANDLERS[type(action)]
        self._ledger.did(action)
        try:
            return handler(self, action)
        except Exception as error:  # noqa: BLE001 - it is logged
            self._faults.exception("unexpected fault in %s", type(action).__name__)
            return _broken(action, f"{type(error).__name__}: {error}")

    def write_ended(self, write_id: int, reason: str = "") -> Event | None:
        """Translate a transport's completion; unknown ids are of writes already given up."""
        key = self._writes.pop(write_id, None)
        if key is None:
            return None
        self._advisor.ended(key, not reason, time.monotonic())
        if reason:
            self._bad_writes.warning("transfer %s: write of slab %d failed: %s", key.leg.transfer_id, key.seq, reason)
            return ev.WriteFailed(key, reason)
        self._timeline.note("producer", "written", key.leg.transfer_id, seq=key.seq)
        return ev.Written(key)

    def _send(self, action: act.Send) -> Event | None:
        reason = self._links.send(action.peer, action.message)
        return ev.Unreachable(action.peer, reason) if reason else None

    def _connect(self, action: act.Connect) -> Event | None:
        self._advisor.met(action.peer, action.name)
        try:
            self._transport.connect(action.peer, action.metadata)
        except TransportError as error:
            self._bad_connects.error("cannot reach consumer %s over %s: %s", action.name, self._transport.name, error)
        return None

    def _forget(self, action: act.Forget) -> Event | None:
        self._transport.disconnect(action.peer)
        self._links.hang_up(action.peer)
        self._advisor.forget(action.peer)
        return None

    def _gather(self, action: act.Gather) -> Event | None:
        tables = self._tables.of(action.key.leg.transfer_id, action.layers)
        if tables is None:
            return ev.GatherFailed(action.key, "the engine has taken the blocks back")
        part = SlabPart(action.layers, tables, action.tokens, action.heads)
        begun = time.perf_counter()
        try:
            num_bytes, checksum = self._mover.encode(
                action.codec, part, self._send_ring, action.send_slot, action.max_bytes
            )
        except SlabTooLarge:
            self._advisor.overflowed(action.codec)
            return ev.GatherTooLarge(action.key)
        except LayoutError as error:
            return ev.GatherFailed(action.key, str(error))
        raw_bytes = slab_bytes(self._mover.memory, part)
        self._advisor.encoded(action.codec, raw_bytes, num_bytes, time.perf_counter() - begun)
        return ev.Gathered(action.key, num_bytes, checksum)

    def _write(self, action: act.Write) -> Event | None:
        header, ring = action.header, action.ring
        if ring.memory_kind != self._send_ring.memory.kind:  # it computes another kind of checksum
            header = msgspec.structs.replace(header, checksum=NONE)
        target = Memory(
            ring.address + header.credit.slot * ring.slot_bytes, header.encoded_bytes, ring.device_id, ring.memory_kind
        )
        source = self._send_ring.part(action.send_slot, header.encoded_bytes)
        now = time.monotonic()
        try:
            write_id = self._transport.write(action.key.leg.peer, source, target, encode(self._instance, header))
        except PdkvError as error:
            return ev.WriteFailed(action.key, str(error))
        self._writes[write_id] = action.key
        self._advisor.started(action, now)
        self._timeline.slab("producer", "posted", header)
        return None

    def _scatter(self, action: act.Scatter) -> Event | None:
        header = action.header
        self._timeline.slab("consumer", "landed", header)
        tables = self._tables.of(header.transfer_id, action.layers)
        if tables is None:
            return ev.Damaged(action.key, "the engine has taken the blocks back")
        part = SlabPart(action.layers, tables, header.tokens, action.heads)
        begun = time.perf_counter()
        try:
            self._mover.decode(
                header.codec, part, self._receive_ring, header.credit.slot, header.encoded_bytes, header.checksum
            )
        except (LayoutError, ProtocolError) as error:
            self._damage.warning("transfer %s: slab %d is damaged: %s", header.transfer_id, header.seq, error)
            return ev.Damaged(action.key, str(error))
        raw_bytes = slab_bytes(self._mover.memory, part)
        self._advisor.decoded(header.codec, raw_bytes, header.encoded_bytes, time.perf_counter() - begun)
        self._ledger.received(header, raw_bytes)
        self._timeline.note("consumer", "scattered", header.transfer_id, seq=header.seq)
        return ev.Scattered(action.key)

    def _digest(self, action: act.Digest) -> Event | None:
        digests: list[str] = []
        for layers, tokens, heads in action.parts:
            tables = self._tables.of(action.key.transfer_id, layers)
            if tables is None:
                return ev.Digested(action.key, ())
            try:
                digests += self._mover.digest(SlabPart(layers, tables, tokens, heads))
            except LayoutError as error:
                self._bad_digests.warning("transfer %s: no digest of its KV: %s", action.key.transfer_id, error)
                return ev.Digested(action.key, ())
        self._timeline.note(action.role, "digested", action.key.transfer_id)
        return ev.Digested(action.key, tuple(digests))

    def _verified(self, action: act.Verified) -> Event | None:
        if action.local != action.remote:
            self._damage.error("transfer %s: KV digests of prefill and decode engine differ", action.transfer_id)
        self._results.verify(action.transfer_id, action.local, action.remote)
        return None

    def _release(self, action: act.Release) -> Event | None:
        self._tables.drop(action.transfer_id)
        self._results.release(action.transfer_id)
        self._timeline.note("producer", "closed", action.transfer_id, outcome=action.outcome)
        return None

    def _deliver(self, action: act.Deliver) -> Event | None:
        self._tables.drop(action.transfer_id)
        self._results.deliver(action.transfer_id)
        self._timeline.note("consumer", "complete", action.transfer_id)
        return None

    def _fail(self, action: act.Fail) -> Event | None:
        self._tables.drop(action.transfer_id)
        self._results.fail(action.transfer_id, action.reason)
        self._timeline.note("consumer", "failed", action.transfer_id, reason=action.reason)
        return None


def _broken(action: act.Action, reason: str) -> Event | None:
    """What to tell the session of a deed that broke, so that it does not wait for the outcome for ever."""
    match action:
        case act.Gather():
            return ev.GatherFailed(action.key, reason)
        case act.Write():
            return ev.WriteFailed(action.key, reason)
        case act.Scatter():
            return ev.Damaged(action.key, reason)
        case act.Digest():
            return ev.Digested(action.key, ())
        case _:
            return None


_HANDLERS: dict[type, Callable[[Hands, Any], Event | None]] = {
    act.Send: Hands._send,
    act.Connect: Hands._connect,
    act.Forget: Hands._forget,
    act.Gather: Hands._gather,
    act.Write: Hands._write,
    act.Scatter: Hands._scatter,
    act.Digest: Hands._digest,
    act.Verified: Hands._verified,
    act.Release: Hands._release,
    act.Deliver: Hands._deliver,
    act.Fail: Hands._fail,
}
