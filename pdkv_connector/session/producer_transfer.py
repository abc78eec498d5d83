"""One transfer on a prefill rank: what is computed, who wants it, and when its blocks may be freed."""

from __future__ import annotations

from pdkv_connector.session.actions import LegKey
from pdkv_connector.session.events import Offered
from pdkv_connector.session.messages import ProducerState, Standing
from pdkv_connector.session.producer_leg import ProducerLeg
from pdkv_connector.session.states import PRODUCER, Machine, ProducerPhase
from pdkv_connector.types import PeerId, Span, SpanSet, TransferId


class ProducerTransfer:
    """Facts of one transfer; `ProducerSession` decides."""

    def __init__(self, transfer_id: TransferId, num_layers: int, offer: Offered | None) -> None:
        start = ProducerPhase.AWAITING_CONSUMER if offer else ProducerPhase.AWAITING_REQUEST
        self.transfer_id = transfer_id
        self.offer = offer
        self.machine: Machine[ProducerPhase] = Machine(PRODUCER, start)
        self.legs: dict[LegKey, ProducerLeg] = {}
        self.served: set[PeerId] = set()
        self.num_consumers = 0
        self.finished = False
        self.released = False
        self.touched_at = 0.0
        self.outcome = ""
        self.ready = [SpanSet() for _ in range(num_layers)]

    @property
    def phase(self) -> ProducerPhase:
        """Where this transfer is in its life."""
        return self.machine.state

    @property
    def live(self) -> bool:
        """False once the transfer can send nothing more."""
        return self.phase not in (ProducerPhase.FENCING, ProducerPhase.CLOSED)

    def leg_of(self, peer: PeerId, epoch: int) -> ProducerLeg | None:
        """The leg towards `peer` of this epoch, if it exists."""
        return self.legs.get(LegKey(self.transfer_id, peer, epoch))

    def mark_ready(self, layers: Span, tokens: Span) -> None:
        """Remember computed KV and queue it on every leg."""
        for layer in layers:
            self.ready[layer].add(tokens)
            for leg in self.legs.values():
                leg.queue.ready(layer, tokens)

    def add_leg(self, leg: ProducerLeg) -> None:
        """Attach a consumer; what is computed already is queued at once."""
        self.legs[leg.key] = leg
        self.num_consumers = max(self.num_consumers, leg.register.num_consumers)
        self.fill(leg)

    def fill(self, leg: ProducerLeg) -> None:
        """Queue on `leg` all that is computed; what it has sent or queued before is left as it is."""
        for layer, computed in enumerate(self.ready):
            for span in computed:
                leg.queue.ready(layer, span)

    def revoke(self) -> None:
        """Forget what was computed: the engine took the blocks back and will compute it again."""
        self.ready = [SpanSet() for _ in self.ready]
        for leg in self.legs.values():
            leg.queue.revoke()

    @property
    def all_served(self) -> bool:
        """True when every consumer rank that will ever ask has been served or has left."""
        return not self.legs and len(self.served) >= max(1, self.num_consumers)

    def standing(self, epoch: int) -> Standing:
        """What a consumer is told about this transfer."""
        num_ready = sum(len(computed) for computed in self.ready)
        if self.offer is None:
            state = ProducerState.UNKNOWN
        else:
            state = ProducerState.STREAMING if num_ready else ProducerState.QUEUED
        return Standing(self.transfer_id, epoch, state, num_ready)
