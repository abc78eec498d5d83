"""What must hold of a whole schedule: everything ends, once, in time, and gives back what it had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.codecs import MAX_PREDICTED_S
from tests.simulator.decode_rank import DecodeRank
from tests.simulator.prefill_rank import PrefillRank
from tests.simulator.scenario import MAX_DELAY_S, MAX_WRITE_S
from tests.simulator.violation import Violation, require

if TYPE_CHECKING:
    from tests.simulator.world import World

SLACK_S = 2 * (MAX_DELAY_S + MAX_WRITE_S)


class Checks:
    """Bounds count from the last thing that happened to the engines: a step, a disaster, a scattered slab."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._scenario = world.scenario
        self.last_disaster_at = max((cut.stop for cut in world.scenario.partitions), default=0.0)

    def disaster(self) -> None:
        self.last_disaster_at = max(self.last_disaster_at, self._world.loop.now)

    def release(self, transfer_id: str, ended_at: float) -> None:
        """Blocks are held no longer than a lease after the last word of a consumer."""
        last = max(ended_at, self.last_disaster_at, self._world.decode.ended_at(transfer_id))
        lease_s = max(self._scenario.producer_timing.lease_s, MAX_PREDICTED_S)
        late_s = self._world.loop.now - last - lease_s - SLACK_S
        require(late_s <= 0, "d", f"Release of {transfer_id} came {late_s:.2f} s too late")

    def horizon(self) -> None:
        """No transfer outlives every timer."""
        world, timing = self._world, self._scenario.producer_timing
        patience_s = self._scenario.stall_timeout_s + timing.quarantine_s + timing.lease_s + 4 * SLACK_S
        begun = max(self.last_disaster_at, world.progress_at, world.prefill.last_step_at, world.decode.last_step_at)
        if world.loop.now - begun > patience_s:
            left = {rank.instance: list(rank.session.transfers) for rank in world.producers}
            left |= {rank.instance: list(rank.session.transfers) for rank in world.decode.ranks}
            raise Violation("d", f"transfers do not end: {left}")

    def end(self) -> None:
        """Nothing is left."""
        for rank in self._world.producers:
            self._producer(rank)
        for consumer in self._world.decode.ranks:
            self._consumer(consumer)

    def _producer(self, rank: PrefillRank) -> None:
        name = f"P{rank.number}"
        for transfer_id, held in rank.blocks.held.items():
            owed = held.ended_at is not None and not held.released
            require(not owed, "d", f"{transfer_id} on {name} was never released")
        book = rank.session.book
        slots = sorted(book.send_slots)
        require(slots == list(range(self._scenario.num_send_slots)), "d", f"send slots of {name} at the end: {slots}")
        require(not book.transfers and not book.turn, "d", f"{name} keeps {list(book.transfers)} {list(book.turn)}")

    def _consumer(self, rank: DecodeRank) -> None:
        name = f"D{rank.number}"
        for transfer_id, sought in rank.promised.sought.items():
            require(bool(sought.outcome), "d", f"{transfer_id} on {name} never ended")
            as_calm = not self._scenario.calm or sought.outcome == "Deliver"
            require(as_calm, "g", f"{transfer_id} on {name} in calm weather: {sought.outcome}")
        book = rank.session.book
        free = sorted(book.ring._free)
        require(free == list(range(self._scenario.num_ring_slots)), "d", f"free slots of {name} at the end: {free}")
        require(not book.transfers, "d", f"{name} keeps {list(book.transfers)}")
