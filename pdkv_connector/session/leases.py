"""How long a prefill rank keeps KV for its consumers, and whose it gives up first when its engine needs blocks."""

from __future__ import annotations

from pdkv_connector.session.producer_book import ProducerBook
from pdkv_connector.session.producer_leg import ProducerLeg
from pdkv_connector.session.producer_transfer import ProducerTransfer


class Leases:
    """A lease is renewed by any word of the consumer and by progress; a request that still runs needs none."""

    def __init__(self, book: ProducerBook) -> None:
        self._book = book
        self._timing = book.timing
        self._reclaimed_at = float("-inf")

    def lease_s(self, leg: ProducerLeg) -> float:
        """Never shorter than what is left to send will take: a consumer that comes back finds its KV."""
        left_bytes = leg.queue.waiting_bytes + sum(slab.piece.raw_bytes for slab in leg.outgoing.values())
        predicted_s = self._book.advisor.predicted_s(leg.key, left_bytes)
        return max(self._timing.lease_s, min(predicted_s, self._timing.stall_timeout_s))

    def expire(self, transfer: ProducerTransfer, now: float) -> None:
        """End what nobody renewed."""
        for leg in list(transfer.legs.values()):
            silent_s = now - leg.heard_at
            if not leg.over and silent_s > self._timing.lease_s and silent_s > (lease_s := self.lease_s(leg)):
                self._book.abort_leg(transfer, leg, f"lease expired: consumer silent for {lease_s:g} s")
        idle = not transfer.legs and (transfer.finished or transfer.offer is None)
        stale = now - transfer.touched_at > self._timing.lease_s
        if idle and stale and transfer.machine.can("lease_expired"):
            transfer.outcome = f"lease expired: no consumer came within {self._timing.lease_s:g} s"
            transfer.machine.fire("lease_expired")
            self._book.close_if_done(transfer)

    def reclaim(self, now: float) -> None:
        """The engine needs blocks: give up the least promising finished transfer, one at a time.

        First those that no consumer asked for, then those whose consumers are silent, the longest silence first. A
        transfer whose consumer is heard of ends by itself, so it is left alone, but while nothing moves for a lease at
        most: the consumer's slots may be lent to others, which wait for these blocks.
        """
        if now - self._reclaimed_at < self._timing.retry_s:
            return
        transfers = self._book.transfers.values()
        idle = [transfer for transfer in transfers if transfer.finished and transfer.machine.can("reclaimed")]
        stale = [transfer for transfer in idle if self._hopeless(transfer, now)]
        if stale:
            self._reclaimed_at = now
            self._give_up(max(stale, key=lambda transfer: (not transfer.legs, self._silent_s(transfer, now))), now)

    def end_all(self, reason: str, now: float) -> None:
        """Consumers have given this process up meanwhile: what they had said before must not start a write now.

        Some of it lies in the sockets yet, before what took it back: whoever means it still will say it again.
        """
        self._book.deaf_until = now + self._timing.retry_s
        for transfer in list(self._book.transfers.values()):
            for leg in list(transfer.legs.values()):
                self._book.abort_leg(transfer, leg, reason)

    @staticmethod
    def _silent_s(transfer: ProducerTransfer, now: float) -> float:
        return now - max((leg.heard_at for leg in transfer.legs.values()), default=transfer.touched_at)

    def _hopeless(self, transfer: ProducerTransfer, now: float) -> bool:
        stuck_s = now - max((leg.moved_at for leg in transfer.legs.values()), default=now)
        return self._silent_s(transfer, now) > self._timing.reclaim_s or stuck_s > self._timing.lease_s

    def _give_up(self, transfer: ProducerTransfer, now: float) -> None:
        silent_s = self._silent_s(transfer, now)
        why = f"was heard of for {silent_s:.1f} s" if silent_s > self._timing.reclaim_s else "lent a slot for long"
        transfer.outcome = f"reclaimed: the prefill engine needs blocks, no consumer {why}"
        transfer.machine.fire("reclaimed")
        for leg in list(transfer.legs.values()):
            self._book.abort_leg(transfer, leg, transfer.outcome)
        self._book.close_if_done(transfer)
