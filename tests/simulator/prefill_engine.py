"""The prefill engine: plays each request's script on every rank, each rank a little later than the one before."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pdkv_connector.session import events as ev
from tests.simulator.pool import BlockPool, Blocks
from tests.simulator.prefill_blocks import Held
from tests.simulator.prefill_rank import PrefillRank
from tests.simulator.scenario import RequestPlan
from tests.simulator.script import Step
from tests.simulator.shape import producer_facts

if TYPE_CHECKING:
    from tests.simulator.world import World


@dataclass(eq=False)
class Run:
    """One request on this engine. `generation` is the engine's at the offer, -1 where it was not there to take it."""

    plan: RequestPlan
    generation: int
    blocks: Blocks = ()
    released: set[int] = field(default_factory=set)
    finished_at: float = float("-inf")


class PrefillEngine:
    """A crash takes all ranks and all requests; what comes later meets the new processes."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self._facts = producer_facts(world.scenario)
        self._plan = world.scenario.prefill[number]
        self.generation = 0
        self.ranks: list[PrefillRank] = []
        self.runs: dict[str, Run] = {}
        self.pressed_since = float("inf")
        self._boot()

    @property
    def engine_id(self) -> str:
        suffix = f".{self.generation}" if self._world.scenario.new_engine_id else ""
        return f"P{self._number}{suffix}"

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(f"P{self._number}.{rank}" for rank in range(len(self._facts)))

    def _boot(self) -> None:
        self.pool = BlockPool(self._plan.num_blocks)
        self.ranks = [
            PrefillRank(self._world, self, name, facts, self._plan)
            for name, facts in zip(self.endpoints, self._facts, strict=True)
        ]
        self._world.listen(self.ranks)

    def crash(self, down_s: float) -> None:
        """Kill every process and start new ones, at once or later."""
        if not self.ranks:
            return
        self._world.note(f"P{self._number} crashes, down for {down_s:.2f} s")
        self._world.checks.disaster(down_s)
        for rank in self.ranks:
            rank.die()
            self._world.checks.silence.begins(rank.name, down_s)
        self._world.hush(self.ranks)
        self.ranks, self.runs = [], {}
        self.pool = BlockPool(0)
        self.generation += 1
        if down_s:
            self._world.loop.after(down_s, self._boot)
        else:
            self._boot()

    # -- the script ---------------------------------------------------------------------------------------------------

    def play(self, plan: RequestPlan) -> None:
        """Schedule the first step."""
        self._schedule(Run(plan, -1), 0)

    def _schedule(self, run: Run, index: int) -> None:
        plan = run.plan
        if index < len(plan.script):
            self._world.loop.after(plan.script[index].delay_s, partial(self._step, run, index))
        elif plan.sequential:
            self._world.decode[plan.d].play(plan, plan.wanted_at if plan.script else 0.0)

    def _step(self, run: Run, index: int) -> None:
        step = run.plan.script[index]
        if step.do == "offer" and self.ranks:
            run.generation = self.generation
            self.runs[run.plan.transfer_id] = run
        here = run.generation == self.generation and bool(self.ranks)
        if here and step.do == "compute" and not run.blocks:
            self.pool.ask(run.plan.num_blocks, partial(self._granted, run, index))
            return
        self._take(run, index, here)

    def _granted(self, run: Run, index: int, blocks: Blocks) -> None:
        run.blocks = blocks
        self._take(run, index, True)

    def _take(self, run: Run, index: int, here: bool) -> None:
        self._world.progress()
        step = run.plan.script[index]
        for number, rank in enumerate(self.ranks if here else ()):
            rank.later(0.01 * number, partial(_do, rank, run.plan, step, run.blocks))
        if here and step.do == "preempt" and run.blocks:
            blocks, run.blocks = run.blocks, ()
            self._world.loop.after(0.0, partial(self._give_back, self.pool, blocks))
        if step.do in ("finish", "withdraw"):
            run.finished_at = self._world.loop.now
        self._schedule(run, index + 1)

    def tick(self) -> None:
        """Time passes on every rank; a request that waits for blocks presses."""
        now = self._world.loop.now
        self.pressed_since = min(self.pressed_since, now) if self.pool.waiting else float("inf")
        for rank in self.ranks:
            if self.pool.waiting:
                rank.feed(ev.Pressed())
            rank.tick()
        if self.pool.waiting:
            self._world.checks.pressed(self)

    def _give_back(self, pool: BlockPool, blocks: Blocks) -> None:
        if pool is self.pool:
            pool.give_back(blocks)

    def released(self, rank: PrefillRank, transfer_id: str) -> None:
        """Blocks are free once every rank has released them."""
        self._world.progress()
        run = self.runs[transfer_id]
        run.released.add(self.ranks.index(rank))
        if len(run.released) == len(self.ranks):
            blocks, run.blocks = run.blocks, ()
            self._world.loop.after(0.0, partial(self._give_back, self.pool, blocks))


def _do(rank: PrefillRank, plan: RequestPlan, step: Step, blocks: Blocks) -> None:
    if step.do == "offer":
        rank.blocks.held[plan.transfer_id] = Held()
        rank.feed(ev.Offered(plan.transfer_id, plan.num_tokens, "digest"))
    elif step.do == "compute":
        rank.compute(plan.transfer_id, blocks, step.tokens)
    elif step.do == "preempt":
        rank.preempt(plan.transfer_id)
    else:
        _end(rank, plan.transfer_id, step.do == "finish")


def _end(rank: PrefillRank, transfer_id: str, finished: bool) -> None:
    """Blocks are kept until Release; an aborted request without blocks has nothing to release."""
    held = rank.blocks.held[transfer_id]
    held.ended_at = rank.world.loop.now if finished or held.allocated else None
    end = ev.Finished(transfer_id) if finished else ev.Withdrawn(transfer_id, "client left", held.allocated)
    rank.feed(end)
