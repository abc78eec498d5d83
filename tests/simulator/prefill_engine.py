"""The prefill engine: plays each request's script on every rank, each rank a little later than the one before."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pdkv_connector.session import events as ev
from pdkv_connector.session.messages import Facts
from tests.simulator.prefill_blocks import Held
from tests.simulator.prefill_rank import PrefillRank
from tests.simulator.scenario import RequestPlan
from tests.simulator.script import Step

if TYPE_CHECKING:
    from tests.simulator.world import World


class PrefillEngine:
    """A crash takes all ranks and all requests; what comes later meets the new processes."""

    def __init__(self, world: World, facts: list[Facts]) -> None:
        self._world = world
        self._facts = facts
        self._generation = 0
        self.last_step_at = 0.0
        self.ranks = self._boot()

    @property
    def engine_id(self) -> str:
        return f"P{self._generation}" if self._world.scenario.new_engine_id else "P"

    def _boot(self) -> list[PrefillRank]:
        return [PrefillRank(self._world, number, facts, self.engine_id) for number, facts in enumerate(self._facts)]

    def crash(self) -> None:
        """Kill every process and start new ones at once."""
        self._world.note("P crashes")
        self._world.checks.disaster()
        for rank in self.ranks:
            rank.dead = True
        self._generation += 1
        self.ranks = self._boot()

    def play(self, plan: RequestPlan) -> None:
        """Schedule the first step."""
        self._schedule(plan, 0, self._generation)

    def _schedule(self, plan: RequestPlan, index: int, generation: int) -> None:
        if index < len(plan.script):
            delay_s = plan.script[index].delay_s
            self._world.loop.after(delay_s, partial(self._step, plan, index, generation))
        elif plan.sequential:
            self._world.decode.play(plan, plan.wanted_at if plan.script else 0.0)

    def _step(self, plan: RequestPlan, index: int, generation: int) -> None:
        self.last_step_at = self._world.loop.now
        step = plan.script[index]
        if step.do == "offer":
            generation = self._generation
        for rank in self.ranks if generation == self._generation else ():
            skew_s = 0.01 * rank.number
            self._world.loop.after(skew_s, partial(_do, rank, plan, step))
        self._schedule(plan, index + 1, generation)


def _do(rank: PrefillRank, plan: RequestPlan, step: Step) -> None:
    if rank.dead:
        return
    if step.do == "offer":
        rank.blocks.held[plan.transfer_id] = Held()
        rank.feed(ev.Offered(plan.transfer_id, plan.num_tokens, "digest"))
    elif step.do == "compute":
        rank.compute(plan.transfer_id, step.tokens)
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
