"""Shared state of the decode side: transfers, peers, the receive ring, and how things end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pdkv_connector.session import messages as msg
from pdkv_connector.session.actions import Action, Deliver, Digest, Fail, Send
from pdkv_connector.session.consumer_leg import ConsumerLeg
from pdkv_connector.session.consumer_peer import ConsumerPeer
from pdkv_connector.session.consumer_transfer import ConsumerTransfer
from pdkv_connector.session.ring import ReceiveRing
from pdkv_connector.session.states import ConsumerPhase
from pdkv_connector.session.timing import Timing
from pdkv_connector.types import PeerId, TransferId


class ConsumerBook:
    """What a decode rank knows of its transfers. Methods append to `actions`."""

    def __init__(self, num_slots: int, window_slots: int, timing: Timing) -> None:
        self.timing = timing
        self.ring = ReceiveRing(num_slots)
        self.actions: list[Action] = []
        self.peers: dict[PeerId, ConsumerPeer] = {}
        self.transfers: dict[TransferId, ConsumerTransfer] = {}
        self._num_slots = num_slots
        self._window_slots = window_slots
        self._stale: dict[int, ConsumerLeg] = {}

    def send(self, peer: PeerId, message: msg.Message) -> None:
        """Queue a message to a producer."""
        self.actions.append(Send(peer, message))

    def legs(self) -> Iterator[tuple[ConsumerTransfer, ConsumerLeg]]:
        """Every leg that is not closed."""
        for transfer in list(self.transfers.values()):
            for leg in transfer.legs.values():
                if not leg.closed:
                    yield transfer, leg

    def legs_of(self, peer: PeerId) -> list[tuple[ConsumerTransfer, ConsumerLeg]]:
        """Every leg towards `peer` that is not closed."""
        return [(transfer, leg) for transfer, leg in self.legs() if leg.key.peer == peer]

    def find(self, peer: PeerId, transfer_id: TransferId, epoch: int) -> tuple[ConsumerTransfer, ConsumerLeg] | None:
        """The transfer and its leg towards `peer`, of this epoch and not closed."""
        transfer = self.transfers.get(transfer_id)
        leg = transfer.legs.get(peer) if transfer and transfer.epoch == epoch else None
        return (transfer, leg) if transfer and leg and not leg.closed else None

    # -- credits ------------------------------------------------------------------------------------------------------

    def owe_ack(self, leg: ConsumerLeg) -> None:
        """This leg's producer must hear the present state; one Ack is sent however often this is called."""
        self._stale[id(leg)] = leg

    @property
    def plenty(self) -> bool:
        """True while slots can be lent ahead of need."""
        return 2 * self.ring.num_free > self._num_slots

    def lend_slots(self) -> None:
        """Hand free slots to streaming legs: first one to every leg that has none, then up to the window.

        The leg that got one the longest ago comes first. A leg whose producer still queues gets none: its slots would
        lie idle while others, computed already, wait. Beyond the first, legs and producers hold no more slots than they
        leave free, and no producer holds the last quarter: one that stands still does not keep the others out.
        """
        if not self.ring.num_free:
            return
        takers = [leg for _, leg in self.legs() if leg.streaming and not leg.over and not leg.whole]
        held: Counter[PeerId] = Counter()
        for _, leg in self.legs():
            held[leg.key.peer] += len(leg.lent)
        for target in (1, self._window_slots):
            for leg in sorted(takers, key=lambda leg: leg.borrowed_at):
                while len(leg.lent) < target and self._may_borrow(leg, held) and leg.borrow(self.ring):
                    held[leg.key.peer] += 1
                    self.owe_ack(leg)

    def _may_borrow(self, leg: ConsumerLeg, held: Counter[PeerId]) -> bool:
        most = self.ring.num_free if leg.lent else self._num_slots - self._num_slots // 4
        return held[leg.key.peer] < most

    def send_acks(self) -> None:
        """Send the acknowledgements owed. A leg that is over says nothing that could renew its lease."""
        for leg in self._stale.values():
            if leg.acknowledged and not leg.over:
                self.send(leg.key.peer, leg.ack())
        self._stale.clear()

    # -- endings ------------------------------------------------------------------------------------------------------

    def advance(self, transfer: ConsumerTransfer, now: float) -> None:
        """Move a transfer along as far as its legs allow."""
        legs = transfer.legs.values()
        if transfer.machine.can("welcomed") and all(leg.register for leg in legs):
            transfer.machine.fire("welcomed")
        if transfer.machine.can("acknowledged") and all(leg.acknowledged for leg in legs):
            transfer.machine.fire("acknowledged")
        for leg in legs:
            if transfer.open and leg.acknowledged and leg.whole and not leg.complete and not leg.scattering:
                leg.complete, leg.ended_at, leg.said_at = True, now, now
                self.send(leg.key.peer, msg.Delivered(leg.key.transfer_id, leg.key.epoch, transfer.wanted.digest))
                if transfer.wanted.digest:
                    parts = tuple((part.local_layers, part.want.tokens, part.local_heads) for part in leg.parts)
                    self.actions.append(Digest(leg.key, parts, "consumer"))
        if transfer.machine.can("complete") and all(leg.complete for leg in legs):
            transfer.machine.fire("complete")
            self.actions.append(Deliver(transfer.transfer_id))
        self._close_if_done(transfer)

    def fail(self, transfer: ConsumerTransfer, reason: str, now: float) -> None:
        """Give a transfer up; the engine hears of it once no scatter touches its blocks."""
        if not transfer.machine.can("failed"):
            return
        transfer.machine.fire("failed")
        transfer.reason = reason
        for leg in transfer.legs.values():
            if leg.over:
                continue
            leg.ended_at = leg.said_at = now
            if leg.register is None:
                leg.closed = True
            else:
                self.send(leg.key.peer, msg.Abort(leg.key.transfer_id, leg.key.epoch, reason[:1024]))
        self.report_failure(transfer)
        self._close_if_done(transfer)

    def report_failure(self, transfer: ConsumerTransfer) -> None:
        """Tell the engine, once, when nothing can touch its blocks any more."""
        if transfer.phase is ConsumerPhase.FAILING and not transfer.reported and not transfer.scattering:
            transfer.reported = True
            self.actions.append(Fail(transfer.transfer_id, transfer.reason))
            self._close_if_done(transfer)

    def close_leg(self, transfer: ConsumerTransfer, leg: ConsumerLeg) -> None:
        """The producer can write no more for this leg: its slots are free."""
        leg.closed = True
        leg.give_back(self.ring)
        self._close_if_done(transfer)

    def _close_if_done(self, transfer: ConsumerTransfer) -> None:
        if not transfer.machine.can("closed") or not all(leg.closed for leg in transfer.legs.values()):
            return
        if transfer.phase is ConsumerPhase.FAILING and not transfer.reported:
            return
        transfer.machine.fire("closed")
        del self.transfers[transfer.transfer_id]
