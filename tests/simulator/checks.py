"""What must hold of a whole schedule: everything ends, once, in time, and gives back what it had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdkv_connector.session import actions as act
from pdkv_connector.session import messages as msg
from tests.simulator.codecs import MAX_PREDICTED_S
from tests.simulator.decode_engine import DecodeEngine, Job
from tests.simulator.decode_rank import DecodeRank
from tests.simulator.footprint import check_footprint
from tests.simulator.prefill_engine import PrefillEngine
from tests.simulator.process import Process
from tests.simulator.scenario import MAX_DELAY_S, MAX_WRITE_S, SLOWEST_RATE
from tests.simulator.silence import Silence
from tests.simulator.violation import Violation, require

if TYPE_CHECKING:
    from tests.simulator.world import World

SLACK_S = 2 * (MAX_DELAY_S + MAX_WRITE_S)
SOON_S, SOON_PER_REQUEST_S = 5.0, 1.5
"""Where nothing is lost KV is there this soon after its prefill, whatever others wait for: a stalled decode engine, a
prefill that takes long. A lease is longer, and so is a slow prefill."""


class Checks:
    """Bounds count from the last thing that happened to the engines: a step, a disaster, a scattered slab."""

    def __init__(self, world: World) -> None:
        self._world = world
        scenario = self._scenario = world.scenario
        ends = [cut.stop for cut in scenario.partitions] + [stop.at + stop.for_s for stop in scenario.stops]
        self.last_disaster_at = max(ends, default=0.0)
        slowest = max(plan.work_factor for plan in (*scenario.prefill, *scenario.decode))
        self._slack_s = SLACK_S + 0.3 * slowest
        producer, consumer = scenario.producer_timing, scenario.consumer_timing
        self._quiet = scenario.calm and not scenario.tight and not scenario.stalled
        self._still = self._quiet and scenario.weather.clear
        self._lease_s = max(producer.lease_s, MAX_PREDICTED_S) / SLOWEST_RATE
        self._patience_s = (
            consumer.stall_timeout_s + 2 * producer.lease_s + consumer.peer_timeout_s
        ) / SLOWEST_RATE + 4 * self._slack_s  # fmt: skip

        self.silence = Silence(world, consumer.peer_timeout_s / SLOWEST_RATE + self._slack_s)

    def disaster(self, down_s: float = 0.0) -> None:
        self.last_disaster_at = max(self.last_disaster_at, self._world.loop.now + down_s)

    def release(self, transfer_id: str, ended_at: float) -> None:
        """Blocks are held no longer than a lease after the last word of a consumer."""
        wanted_until = max(engine.ended_at(transfer_id) for engine in self._world.decode)
        last = max(ended_at, self.last_disaster_at, wanted_until)
        late_s = self._world.loop.now - last - self._lease_s - self._slack_s
        require(late_s <= 0, "d", f"Release of {transfer_id} came {late_s:.2f} s too late")

    def horizon(self) -> None:
        """Nothing waits for ever: not for a peer, and not for blocks that others hold while they wait as well."""
        world = self._world
        begun = max(self.last_disaster_at, world.progress_at)
        if world.loop.now - begun > self._patience_s:
            left = {rank.instance: list(rank.session.transfers) for rank in world.ranks}
            raise Violation("d", f"transfers do not end: {left}")
        if world.rng.random() < 0.01:
            self._footprints()

    def pressed(self, engine: PrefillEngine) -> None:
        """KV that nobody has asked for gives way soon to a request that waits for blocks."""
        timing, now = self._scenario.producer_timing, self._world.loop.now
        patience_s = (timing.reclaim_s + timing.retry_s * len(engine.runs)) / SLOWEST_RATE + 1.0
        for transfer_id, run in engine.runs.items():
            since = max(run.finished_at, engine.pressed_since, self.last_disaster_at)
            kept = run.blocks and run.finished_at >= 0 and now - since > patience_s
            if kept and not any(transfer_id in decode.jobs for decode in self._world.decode):
                raise Violation("h", f"{transfer_id} keeps blocks of {engine.engine_id}, others wait, nobody asked")

    # -- causes -------------------------------------------------------------------------------------------------------

    def said(self, rank: Process, message: msg.Message) -> None:
        """Nobody gives up in calm weather."""
        if self._quiet and isinstance(message, msg.Abort):
            raise Violation("g", f"{rank.name} says without a cause: {message}")

    def written(self, rank: Process, write: act.Write) -> None:
        """Where nothing is lost or late nothing is written twice."""
        if not (not self._still or write.attempt == 1):
            raise Violation("g", f"{rank.name} writes {write.key} again without a cause")

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Nothing is left."""
        for engine in self._world.prefill:
            self._producers(engine)
        for decode in self._world.decode:
            self._consumers(decode)
        if self._world.rng.random() < 0.3:
            self._footprints()

    def _footprints(self) -> None:
        """Looking is dear: some schedules, some moments."""
        for rank in self._world.ranks:
            check_footprint(rank, self._world)

    def _producers(self, engine: PrefillEngine) -> None:
        for rank in engine.ranks:
            for transfer_id, held in rank.blocks.held.items():
                owed = held.ended_at is not None and not held.released
                require(not owed, "d", f"{transfer_id} on {rank.name} was never released")
            book = rank.session.book
            slots = sorted(book.send_slots)
            whole = slots == list(range(self._scenario.num_send_slots))
            require(whole, "d", f"send slots of {rank.name} at the end: {slots}")
            left = [*book.transfers, *book.turn]
            require(not left, "d", f"{rank.name} keeps {left}")
        running = sum(len(run.blocks) for run in engine.runs.values())
        require(not engine.pool.waiting and not running, "d", f"blocks of {engine.engine_id} are not free at the end")

    def _consumers(self, engine: DecodeEngine) -> None:
        for transfer_id, job in engine.jobs.items():
            ended = job.ended_at < float("inf") and not job.blocks
            require(ended, "d", f"{transfer_id} waits at the end, in {engine.ranks[0].name} or for its blocks")
            self._soon(job)
        for rank in engine.ranks:
            self._consumer(rank, engine.jobs)

    def _consumer(self, rank: DecodeRank, jobs: dict[str, Job]) -> None:
        for transfer_id, sought in rank.promised.sought.items():
            where = f"{transfer_id} on {rank.name}"
            require(bool(sought.outcome), "d", f"{where} never ended")
            if self._scenario.calm and not self._stalled(jobs[transfer_id]):
                require("no progress" not in sought.outcome, "d", f"{where} waited in a circle: {sought.outcome}")
                as_calm = self._scenario.tight or sought.outcome == "Deliver"
                require(as_calm, "g", f"{where} in calm weather: {sought.outcome}")
        book = rank.session.book
        free = sorted(book.ring._free)
        whole = free == list(range(self._scenario.num_ring_slots))
        require(whole, "d", f"free slots of {rank.name} at the end: {free}")
        require(not book.transfers, "d", f"{rank.name} keeps {list(book.transfers)}")

    def _stalled(self, job: Job) -> bool:
        return self._scenario.stalled in (f"P{job.plan.p}", f"D{job.plan.d}")

    def _soon(self, job: Job) -> None:
        """Nobody waits for somebody else's peer."""
        plan, stalled = job.plan, self._scenario.stalled
        if self._stalled(job) or not (self._still or stalled):
            return
        ready_at = max(self._world.prefill[plan.p].runs[plan.transfer_id].finished_at, job.admitted_at)
        took_s = job.ended_at - ready_at
        num_legs = max(1, self._scenario.d_tp // self._scenario.p_tp)  # of each transfer on a producer rank
        bound_s = SOON_S + SOON_PER_REQUEST_S * len(self._scenario.requests) * num_legs
        require(took_s < bound_s, "h", f"{plan.transfer_id} on D{plan.d} waited {took_s:.1f} s for others")
