"""The prefill side of the protocol, without clock, sockets or memory: events in, actions out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.session.actions import Action, Release
from pdkv_connector.session.codec_advisor import CodecAdvisor
from pdkv_connector.session.leases import Leases
from pdkv_connector.session.messages import Facts
from pdkv_connector.session.producer_book import ProducerBook
from pdkv_connector.session.producer_desk import ConsumerDesk
from pdkv_connector.session.producer_transfer import ProducerTransfer
from pdkv_connector.session.timing import Timing
from pdkv_connector.types import TransferId


class ProducerSession:
    """All transfers of one prefill rank. `handle` takes an event, `tick` the passing of time."""

    def __init__(
        self,
        engine_id: str,
        facts: Facts,
        transport: str,
        metadata: bytes,
        slot_bytes: int,
        num_slots: int,
        timing: Timing,
        advisor: CodecAdvisor,
    ) -> None:
        self.book = ProducerBook(len(facts.layers), num_slots, timing, advisor)
        self.leases = Leases(self.book)
        self.desk = ConsumerDesk(self.book, engine_id, facts, transport, metadata, slot_bytes)
        self._ticked_at = float("inf")

    @property
    def transfers(self) -> dict[TransferId, ProducerTransfer]:
        """Transfers that are not over."""
        return self.book.transfers

    @property
    def streaming(self) -> bool:
        """True while some consumer takes slabs or waits for them."""
        return bool(self.book.turn)

    def handle(self, event: ev.ProducerEvent, now: float) -> list[Action]:
        """Take one event; returns what the runtime must do, in order."""
        if now - self._ticked_at > self.book.timing.peer_timeout_s:
            self._ticked_at = now
            self.leases.end_all("the producer stood still for too long", now)
        _EVENTS[type(event)](self, event, now)
        return self._flush(now)

    def tick(self, now: float) -> list[Action]:
        """Let time pass: expire leases, forget consumers that are gone."""
        self._ticked_at = now
        for transfer in list(self.transfers.values()):
            self.leases.expire(transfer, now)
        self.desk.forget_silent(now)
        return self._flush(now)

    def _flush(self, now: float) -> list[Action]:
        self.book.pump(now)
        actions, self.book.actions = self.book.actions, []
        return actions

    def _on_offered(self, event: ev.Offered, now: float) -> None:
        if event.transfer_id in self.book.ended:
            return
        transfer = self.book.transfers.setdefault(
            event.transfer_id, ProducerTransfer(event.transfer_id, self.book.num_layers, event)
        )
        transfer.offer, transfer.touched_at = event, now
        if transfer.machine.can("offered"):
            transfer.machine.fire("offered")
            for leg in list(transfer.legs.values()):
                self.book.check_prompt(transfer, leg)

    def _on_ready(self, event: ev.Ready, now: float) -> None:
        if transfer := self.book.transfers.get(event.transfer_id):
            transfer.touched_at = now
            if transfer.live:
                begins = not any(transfer.ready)
                transfer.mark_ready(event.layers, event.tokens)
                if begins:
                    self.book.announce(transfer)

    def _on_revoked(self, event: ev.Revoked, now: float) -> None:
        if transfer := self.book.transfers.get(event.transfer_id):
            transfer.touched_at = now
            transfer.revoke()

    def _on_finished(self, event: ev.Finished, now: float) -> None:
        transfer = self.book.transfers.get(event.transfer_id)
        if transfer is None:
            self.book.actions.append(Release(event.transfer_id, self.book.ended.get(event.transfer_id, "unknown")))
            return
        transfer.finished, transfer.touched_at = True, now
        for leg in transfer.legs.values():
            leg.moved_at = now

    def _on_withdrawn(self, event: ev.Withdrawn, now: float) -> None:
        transfer = self.book.transfers.get(event.transfer_id)
        if transfer is None:
            if event.holds_blocks:
                self.book.actions.append(Release(event.transfer_id, "withdrawn"))
            return
        transfer.finished, transfer.touched_at = event.holds_blocks, now
        transfer.outcome = f"withdrawn: {event.reason}"
        if transfer.machine.can("withdrawn"):
            transfer.machine.fire("withdrawn")
        for leg in list(transfer.legs.values()):
            self.book.send(leg.key.peer, msg.Abort(leg.key.transfer_id, leg.key.epoch, event.reason[:1024]))
            self.book.end_leg(transfer, leg, transfer.outcome)
        self.book.close_if_done(transfer)

    def _on_gathered(self, event: ev.Gathered, _now: float) -> None:
        if found := self.book.leg_of(event.key.leg):
            write = found[1].gathered(event.key.seq, event.encoded_bytes, event.checksum)
            self.book.actions += [write] if write else []
            self.book.reap(*found)

    def _on_gather_too_large(self, event: ev.GatherTooLarge, _now: float) -> None:
        """Plan the piece again, smaller; KV of no more than a slot always fits, or the codec is broken."""
        if found := self.book.leg_of(event.key.leg):
            transfer, leg = found
            slab = leg.take_back(event.key.seq)
            self.book.send_slots.append(slab.send_slot)
            transfer.fill(leg)
            if slab.piece.raw_bytes <= leg.queue.slot_bytes and not leg.over:
                self.book.abort_leg(transfer, leg, f"codec {slab.codec} made {slab.piece.raw_bytes} bytes of KV larger")
            self.book.reap(transfer, leg)

    def _on_gather_failed(self, event: ev.GatherFailed, now: float) -> None:
        if found := self.book.leg_of(event.key.leg):
            self.book.send_slots += found[1].written(event.key.seq, now)
            self.book.abort_leg(*found, event.reason)

    def _on_write_ended(self, event: ev.Written | ev.WriteFailed, now: float) -> None:
        """A slab whose write failed stays unacknowledged: it is written again, a few times, when the consumer asks."""
        if found := self.book.leg_of(event.key.leg):
            if isinstance(event, ev.Written):
                found[0].touched_at = now
            self.book.send_slots += found[1].written(event.key.seq, now)
            self.book.reap(*found)


_EVENTS: dict[type, Callable[[ProducerSession, Any, float], None]] = {
    ev.Heard: lambda session, event, now: session.desk.hear(event, now),
    ev.Offered: ProducerSession._on_offered,
    ev.Ready: ProducerSession._on_ready,
    ev.Revoked: ProducerSession._on_revoked,
    ev.Finished: ProducerSession._on_finished,
    ev.Pressed: lambda session, _event, now: session.leases.reclaim(now),
    ev.Withdrawn: ProducerSession._on_withdrawn,
    ev.Gathered: ProducerSession._on_gathered,
    ev.GatherTooLarge: ProducerSession._on_gather_too_large,
    ev.GatherFailed: ProducerSession._on_gather_failed,
    ev.Digested: lambda session, event, _now: session.desk.digested(event),
    ev.Written: ProducerSession._on_write_ended,
    ev.WriteFailed: ProducerSession._on_write_ended,
}
