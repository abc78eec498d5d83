"""Whether consumers notice a producer that says nothing any more."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulator.decode_rank import DecodeRank
from tests.simulator.violation import Violation

if TYPE_CHECKING:
    from tests.simulator.world import World


class Silence:
    """Everything asked before the silence began must have ended `patience_s` later."""

    def __init__(self, world: World, patience_s: float) -> None:
        self._world = world
        self._patience_s = patience_s

    def begins(self, name: str, for_s: float) -> None:
        """The process at this address says nothing for so long from now on."""
        if name[0] == "P" and for_s > self._patience_s:
            self._world.loop.after(self._patience_s, partial(self._check, name, self._world.loop.now))

    def _check(self, name: str, since: float) -> None:
        for engine in self._world.decode:
            for rank in engine.ranks:
                if rank.disturbed_at < since and not rank.stopped:
                    self._check_rank(rank, name, since)

    @staticmethod
    def _check_rank(rank: DecodeRank, name: str, since: float) -> None:
        for transfer in rank.session.transfers.values():
            leg = transfer.legs.get(name)
            asked_at = rank.promised.sought[transfer.transfer_id].asked_at
            if leg and transfer.open and not leg.complete and asked_at < since:
                what = f"{rank.name} waits for {transfer.transfer_id} of {name}, silent since {since:.2f}"
                raise Violation("g", what)
