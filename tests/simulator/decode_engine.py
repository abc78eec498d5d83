"""The decode engine: allocates blocks, asks for KV, changes its mind, crashes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pdkv_connector.layout.window import needed_tokens
from pdkv_connector.session import events as ev
from tests.simulator.decode_rank import DecodeRank
from tests.simulator.pool import BlockPool, Blocks, Waiting
from tests.simulator.scenario import RequestPlan
from tests.simulator.shape import consumer_facts

if TYPE_CHECKING:
    from tests.simulator.world import World

RECOMPUTE_S = 0.3


@dataclass(eq=False)
class Job:
    """One request on this engine: `left` are the ranks that have not ended."""

    plan: RequestPlan
    arrived_at: float
    waiting: Waiting | None = None
    blocks: Blocks = ()
    left: set[DecodeRank] = field(default_factory=set)
    admitted_at: float = float("inf")
    ended_at: float = float("inf")


class DecodeEngine:
    """A crash takes all ranks and all requests; what comes later meets the new processes."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self.engine_id = f"D{number}"
        self._facts = consumer_facts(world.scenario)
        self._plan = world.scenario.decode[number]
        self.ranks: list[DecodeRank] = []
        self.jobs: dict[str, Job] = {}
        self._boot()

    def _boot(self) -> None:
        self.pool = BlockPool(self._plan.num_blocks)
        self.ranks = [
            DecodeRank(self._world, self, f"D{self._number}.{number}", facts, self._plan)
            for number, facts in enumerate(self._facts)
        ]
        self._world.listen(self.ranks)
        self._world.decode_processes |= {rank.instance: rank for rank in self.ranks}

    def crash(self, down_s: float) -> None:
        """Kill every process and start new ones, at once or later; some requests come again."""
        if not self.ranks:
            return
        self._world.note(f"D{self._number} crashes, down for {down_s:.2f} s")
        self._world.checks.disaster(down_s)
        for rank in self.ranks:
            rank.die()
        self._world.hush(self.ranks)
        again = [job.plan for job in self.jobs.values() if job.plan.tries_again]
        self.ranks, self.jobs = [], {}
        self.pool = BlockPool(0)
        if down_s:
            self._world.loop.after(down_s, self._boot)
        else:
            self._boot()
        for plan in again:
            self.play(plan, down_s + 0.1)

    def tick(self) -> None:
        """Time passes on every rank."""
        for rank in self.ranks:
            rank.tick()

    # -- one request --------------------------------------------------------------------------------------------------

    def play(self, plan: RequestPlan, delay_s: float) -> None:
        """Schedule the request's arrival."""
        if plan.comes:
            self._world.loop.after(delay_s, partial(self._arrive, plan))

    def _arrive(self, plan: RequestPlan) -> None:
        if not self.ranks or plan.transfer_id in self.jobs:
            return
        self._world.progress()
        job = self.jobs[plan.transfer_id] = Job(plan, self._world.loop.now)
        if plan.unwanted_after is not None:
            self._world.loop.after(plan.unwanted_after, partial(self._unwanted, job))
        waiting = self.pool.ask(plan.num_blocks, partial(self._admit, job))
        if waiting in self.pool.waiting:
            job.waiting = waiting

    def _unwanted(self, job: Job) -> None:
        if self.jobs.get(job.plan.transfer_id) is not job:
            return
        if job.waiting and self.pool.leave(job.waiting):
            job.admitted_at = job.ended_at = self._world.loop.now
        for rank in self.ranks if job.blocks else ():
            rank.feed(ev.Unwanted(job.plan.transfer_id, "abort"))

    def _admit(self, job: Job, blocks: Blocks) -> None:
        """Every rank asks for its part."""
        self._world.progress()
        job.blocks, job.admitted_at, job.left = blocks, self._world.loop.now, set(self.ranks)
        event = self._wanted(job.plan)
        for number, rank in enumerate(self.ranks):
            rank.later(0.01 * number, partial(rank.want, event, blocks, not job.plan.mismatch))

    def _wanted(self, plan: RequestPlan) -> ev.Wanted:
        scenario, prefill = self._world.scenario, self._world.prefill[plan.p]
        needs = tuple(needed_tokens(plan.num_tokens, plan.hit, window) for window in scenario.windows)
        return ev.Wanted(
            plan.transfer_id,
            prefill.engine_id,
            prefill.endpoints,
            scenario.p_tp,
            plan.num_tokens,
            "another" if plan.mismatch else "digest",
            needs,
            digest=plan.digest,
        )

    def ended(self, rank: DecodeRank, transfer_id: str) -> None:
        """A rank has the KV or will not get it; once all have said so the request decodes, or is computed here."""
        self._world.progress()
        job = self.jobs[transfer_id]
        job.left.discard(rank)
        if not job.left:
            job.ended_at = self._world.loop.now
            self._world.loop.after(job.plan.decode_s + RECOMPUTE_S * self._recomputes(job), partial(self._free, job))

    def _recomputes(self, job: Job) -> bool:
        return any(rank.promised.sought[job.plan.transfer_id].outcome != "Deliver" for rank in self.ranks)

    def _free(self, job: Job) -> None:
        if self.jobs.get(job.plan.transfer_id) is not job:
            return
        for rank in self.ranks:
            rank.promised.check_kept(job.plan.transfer_id)
        self._world.progress()
        blocks, job.blocks = job.blocks, ()
        self.pool.give_back(blocks)

    def ended_at(self, transfer_id: str) -> float:
        """When the last rank got Deliver or Fail; infinite while one waits, 0 when nobody asked."""
        job = self.jobs.get(transfer_id)
        return job.ended_at if job and job.admitted_at < float("inf") else 0.0
