"""One transfer on a decode rank: its legs, its phase, and how it ends."""

from __future__ import annotations

from pdkv_connector.layout.topology import feeds, num_consumers, releases
from pdkv_connector.session.actions import LegKey
from pdkv_connector.session.consumer_leg import ConsumerLeg, LegPlan
from pdkv_connector.session.events import Wanted
from pdkv_connector.session.messages import Facts
from pdkv_connector.session.states import CONSUMER, ConsumerPhase, Machine
from pdkv_connector.types import PeerId, Span, TransferId


def plan_legs(facts: Facts, wanted: Wanted) -> tuple[LegPlan, ...]:
    """Which producer ranks this consumer rank must ask, each pipeline stage alike. Raises LayoutError."""
    heads = {
        feed.producer_rank: feed.global_heads
        for feed in feeds(facts.num_kv_heads, wanted.tp_size, facts.tp_rank, facts.tp_size)
    }
    for rank in releases(facts.num_kv_heads, wanted.tp_size, facts.tp_rank, facts.tp_size):
        heads[rank] = Span(0, 0)
    return tuple(
        LegPlan(
            wanted.endpoints[stage + rank],
            heads[rank],
            num_consumers(facts.num_kv_heads, rank, wanted.tp_size, facts.tp_size) * facts.pp_size,
        )
        for stage in range(0, len(wanted.endpoints), wanted.tp_size)
        for rank in sorted(heads)
    )


class ConsumerTransfer:
    """Facts of one transfer; `ConsumerSession` decides."""

    def __init__(self, wanted: Wanted, plans: tuple[LegPlan, ...], epoch: int, now: float) -> None:
        self.wanted = wanted
        self.epoch = epoch
        self.machine: Machine[ConsumerPhase] = Machine(CONSUMER, ConsumerPhase.CONNECTING)
        self.unknown_since = now
        self.reason = ""
        self.reported = False
        self.legs: dict[PeerId, ConsumerLeg] = {
            plan.endpoint: ConsumerLeg(LegKey(wanted.transfer_id, plan.endpoint, epoch), plan, now) for plan in plans
        }

    @property
    def transfer_id(self) -> TransferId:
        """The router's name for this transfer."""
        return self.wanted.transfer_id

    @property
    def phase(self) -> ConsumerPhase:
        """Where this transfer is in its life."""
        return self.machine.state

    @property
    def open(self) -> bool:
        """True while KV is still expected."""
        return self.phase in (ConsumerPhase.CONNECTING, ConsumerPhase.REGISTERING, ConsumerPhase.RECEIVING)

    @property
    def scattering(self) -> bool:
        """True while some slab is being written into the engine's blocks."""
        return any(leg.scattering for leg in self.legs.values())

    def uncovered_layer(self, facts: Facts) -> str:
        """A layer whose KV no producer rank supplies in full, or an empty string; asked once all legs are prepared."""
        supplied = [0] * len(facts.layers)
        for leg in self.legs.values():
            for part in leg.parts:
                for layer in part.local_layers:
                    supplied[layer] += len(part.local_heads)
        for layer, fact in enumerate(facts.layers):
            if self.wanted.needs[layer] and supplied[layer] != len(fact.heads):
                return fact.name
        return ""
