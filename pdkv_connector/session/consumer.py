"""The decode side of the protocol, without clock, sockets or memory: events in, actions out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pdkv_connector.errors import LayoutError
from pdkv_connector.session import events as ev
from pdkv_connector.session.actions import Action, Fail, Scatter, SlabKey
from pdkv_connector.session.consumer_book import ConsumerBook
from pdkv_connector.session.consumer_clock import ConsumerClock
from pdkv_connector.session.consumer_desk import ProducerDesk
from pdkv_connector.session.consumer_leg import ConsumerLeg, LegPlan
from pdkv_connector.session.consumer_peer import ConsumerPeer
from pdkv_connector.session.consumer_transfer import ConsumerTransfer, plan_legs
from pdkv_connector.session.messages import PROTOCOL_VERSION, Facts, Hello, ProducerState, RingSpec
from pdkv_connector.session.timing import Timing
from pdkv_connector.types import TransferId


class ConsumerSession:
    """All transfers of one decode rank. `handle` takes an event, `tick` the passing of time."""

    def __init__(
        self,
        engine_id: str,
        facts: Facts,
        transport: str,
        metadata: bytes,
        ring: RingSpec,
        window_slots: int,
        timing: Timing,
        decode_bytes_per_s: tuple[int, ...] = (),
    ) -> None:
        version = PROTOCOL_VERSION
        hello = Hello(engine_id, version, version, facts, transport, metadata, ring, decode_bytes_per_s)
        self.book = ConsumerBook(ring.num_slots, window_slots, timing)
        self.desk = ProducerDesk(self.book, facts)
        self.clock = ConsumerClock(self.book, hello)
        self._facts = facts
        self._slot_bytes = ring.slot_bytes
        self._next_epoch = 0

    @property
    def transfers(self) -> dict[TransferId, ConsumerTransfer]:
        """Transfers that are not over."""
        return self.book.transfers

    def handle(self, event: ev.ConsumerEvent, now: float) -> list[Action]:
        """Take one event; returns what the runtime must do, in order."""
        _EVENTS[type(event)](self, event, now)
        return self._flush()

    def tick(self, now: float) -> list[Action]:
        """Let time pass: repeat what was lost, renew leases, give up on the silent."""
        self.clock.tick(now)
        return self._flush()

    def _flush(self) -> list[Action]:
        self.book.lend_slots()
        self.book.send_acks()
        actions, self.book.actions = self.book.actions, []
        # Decoding takes a while: the producer gets its new credits first, and fills them meanwhile.
        return sorted(actions, key=lambda action: isinstance(action, Scatter))

    def _on_wanted(self, event: ev.Wanted, now: float) -> None:
        try:
            plans = self._plan(event)
        except LayoutError as error:
            self.book.actions.append(Fail(event.transfer_id, str(error)))
            return
        self._next_epoch += 1
        transfer = ConsumerTransfer(event, plans, self._next_epoch, now)
        self.book.transfers[event.transfer_id] = transfer
        for plan in plans:
            peer = self._dial(plan.endpoint, event.engine_id, now)
            if peer.ready:
                self.desk.register(transfer, transfer.legs[plan.endpoint], peer, now)
        self.clock.tick(now)

    def _plan(self, event: ev.Wanted) -> tuple[LegPlan, ...]:
        if event.transfer_id in self.transfers:
            raise LayoutError(f"transfer {event.transfer_id} is already in progress: transfer ids must be unique")
        if not event.endpoints or event.tp_size < 1 or len(event.endpoints) % event.tp_size:
            raise LayoutError(
                f"{len(event.endpoints)} producer endpoints do not divide by tp_size {event.tp_size}: "
                "the router must pass on what the prefill engine returned"
            )
        return plan_legs(self._facts, event)

    def _dial(self, endpoint: str, engine_id: str, now: float) -> ConsumerPeer:
        peer = self.book.peers.get(endpoint)
        if peer is None:
            peer = self.book.peers[endpoint] = ConsumerPeer(endpoint, now)
        elif peer.machine.can("dial"):
            peer.greet("dial", now)
        elif peer.ready and peer.welcome and engine_id and peer.welcome.engine_id != engine_id:
            peer.greet("restart", now)
        return peer

    def _on_unwanted(self, event: ev.Unwanted, now: float) -> None:
        if transfer := self.transfers.get(event.transfer_id):
            self.book.fail(transfer, event.reason, now)

    def _on_unreachable(self, event: ev.Unreachable, now: float) -> None:
        peer = self.book.peers.get(event.peer)
        if peer and peer.machine.can("silence"):
            self.clock.lose(peer, event.reason, now)

    def _on_landed(self, event: ev.Landed, now: float) -> None:
        found = self._leg_from(event.instance, event.header.transfer_id, event.header.epoch)
        if found is None:
            return
        transfer, leg = found
        slab = event.header
        leg.acknowledged, leg.state = True, ProducerState.STREAMING
        self.book.peers[leg.key.peer].heard(now)
        transfer.unknown_since = float("inf")
        self.book.advance(transfer, now)
        if not leg.is_current(slab):
            self.book.owe_ack(leg)
            return
        welcome = self.book.peers[leg.key.peer].welcome
        codecs = [codec for codec in welcome.codecs if codec in self._facts.codecs] if welcome else []
        if fault := leg.fault_in(slab, codecs, self._slot_bytes, self._facts.layers):
            self.book.fail(transfer, f"producer {leg.key.peer} broke the protocol: {fault}", now)
            return
        leg.scattering[slab.seq] = slab
        part = leg.parts[slab.want]
        layers = tuple(part.local_layers[position] for position in slab.layers)
        self.book.actions.append(Scatter(SlabKey(leg.key, slab.seq), slab, layers, part.local_heads))

    def _leg_from(
        self, instance: str, transfer_id: TransferId, epoch: int
    ) -> tuple[ConsumerTransfer, ConsumerLeg] | None:
        transfer = self.transfers.get(transfer_id)
        if transfer is None or transfer.epoch != epoch or not transfer.open:
            return None
        for endpoint, leg in transfer.legs.items():
            peer = self.book.peers.get(endpoint)
            if peer and peer.instance == instance and leg.register and not leg.complete and not leg.closed:
                return transfer, leg
        return None

    def _scattering(self, key: SlabKey) -> tuple[ConsumerTransfer, ConsumerLeg] | None:
        transfer = self.transfers.get(key.leg.transfer_id)
        leg = transfer.legs.get(key.leg.peer) if transfer and transfer.epoch == key.leg.epoch else None
        return (transfer, leg) if transfer and leg and key.seq in leg.scattering else None

    def _on_scattered(self, event: ev.Scattered, now: float) -> None:
        if found := self._scattering(event.key):
            transfer, leg = found
            leg.scattered(event.key.seq, self.book.ring, now)
            self.book.owe_ack(leg)
            self.book.advance(transfer, now)
            self.book.report_failure(transfer)

    def _on_damaged(self, event: ev.Damaged, now: float) -> None:
        if found := self._scattering(event.key):
            transfer, leg = found
            if leg.damaged(event.key.seq, self.book.ring):
                self.book.fail(transfer, f"slabs keep arriving damaged: {event.reason}", now)
            self.book.report_failure(transfer)


_EVENTS: dict[type, Callable[[ConsumerSession, Any, float], None]] = {
    ev.Heard: lambda session, event, now: session.desk.hear(event, now),
    ev.Landed: ConsumerSession._on_landed,
    ev.Unreachable: ConsumerSession._on_unreachable,
    ev.Wanted: ConsumerSession._on_wanted,
    ev.Unwanted: ConsumerSession._on_unwanted,
    ev.Scattered: ConsumerSession._on_scattered,
    ev.Damaged: ConsumerSession._on_damaged,
    ev.Digested: lambda session, event, _now: session.desk.digested(event),
}
