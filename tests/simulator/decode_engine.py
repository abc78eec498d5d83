"""The decode engine: asks for KV, changes its mind, crashes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pdkv_connector.layout.window import needed_tokens
from pdkv_connector.session import events as ev
from pdkv_connector.session.messages import Facts
from tests.simulator.decode_rank import DecodeRank
from tests.simulator.scenario import RequestPlan

if TYPE_CHECKING:
    from tests.simulator.world import World


class DecodeEngine:
    """A crash takes all ranks and all requests; what comes later meets the new processes."""

    def __init__(self, world: World, facts: list[Facts]) -> None:
        self._world = world
        self._facts = facts
        self.last_step_at = 0.0
        self.ranks = self._boot()

    def _boot(self) -> list[DecodeRank]:
        ranks = [DecodeRank(self._world, number, facts) for number, facts in enumerate(self._facts)]
        self._world.decode_processes |= {rank.instance: rank for rank in ranks}
        return ranks

    def crash(self) -> None:
        """Kill every process and start new ones at once."""
        self._world.note("D crashes")
        self._world.checks.disaster()
        for rank in self.ranks:
            rank.dead = True
        self.ranks = self._boot()

    def play(self, plan: RequestPlan, delay_s: float) -> None:
        """Schedule the request's arrival on every rank."""
        if plan.comes:
            self._world.loop.after(delay_s, partial(self._arrive, plan))

    def _arrive(self, plan: RequestPlan) -> None:
        self.last_step_at = self._world.loop.now
        for rank in self.ranks:
            self._world.loop.after(0.01 * rank.number, partial(self._want, rank, plan))
            if plan.unwanted_after is not None:
                self._world.loop.after(plan.unwanted_after, partial(rank.feed, ev.Unwanted(plan.transfer_id, "abort")))

    def _want(self, rank: DecodeRank, plan: RequestPlan) -> None:
        if rank.dead:
            return
        scenario = self._world.scenario
        endpoints = tuple(self._world.endpoint(number) for number in range(scenario.p_tp * scenario.p_pp))
        needs = tuple(needed_tokens(plan.num_tokens, plan.hit, window) for window in scenario.windows)
        digest = "another" if plan.mismatch else "digest"
        event = ev.Wanted(
            plan.transfer_id,
            self._world.prefill.engine_id,
            endpoints,
            scenario.p_tp,
            plan.num_tokens,
            digest,
            needs,
            digest=plan.digest,
        )
        rank.want(event, not plan.mismatch)

    def unreachable(self, rank: DecodeRank, endpoint: str) -> None:
        """The runtime cannot reach a producer."""
        rank.feed(ev.Unreachable(endpoint, "connection lost"))

    def ended_at(self, transfer_id: str) -> float:
        """When the last rank got Deliver or Fail; infinite while one waits, 0 when nobody asked."""
        sought = [rank.promised.sought[transfer_id] for rank in self.ranks if transfer_id in rank.promised.sought]
        return max((s.ended_at if s.outcome else float("inf") for s in sought), default=0.0)
