"""One schedule: the engines, the network between them, the disasters, and the checks at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tests.simulator.checks import Checks
from tests.simulator.control import Control
from tests.simulator.decode_engine import DecodeEngine
from tests.simulator.decode_rank import DecodeRank
from tests.simulator.disasters import Disasters
from tests.simulator.loop import Loop
from tests.simulator.prefill_engine import PrefillEngine
from tests.simulator.process import Process
from tests.simulator.scenario import Scenario
from tests.simulator.wire import Wire

TICK_S = 0.2
QUIET_TICK_S = 0.5


class World:
    """Owns the true time and every process. `trace` receives one line per event when one is wanted."""

    def __init__(self, scenario: Scenario, rng: Random, trace: Callable[[str], None] | None = None) -> None:
        self.scenario = scenario
        self.rng = rng
        self.loop = Loop()
        self.control = Control(self.loop, rng, scenario, self.at)
        self.wire = Wire(self.loop, rng, scenario, self.control)
        self.decode_processes: dict[str, DecodeRank] = {}
        self.trace = trace
        self._listening: dict[str, Process] = {}
        self._num_named = 0
        self.progress_at = 0.0
        self.checks = Checks(self)
        self.prefill = [PrefillEngine(self, number) for number in range(len(scenario.prefill))]
        self.decode = [DecodeEngine(self, number) for number in range(len(scenario.decode))]

    # -- names --------------------------------------------------------------------------------------------------------

    def new_instance(self, name: str) -> str:
        self._num_named += 1
        return f"{name}#{self._num_named}"

    def new_checksum(self) -> int:
        self._num_named += 1
        return self._num_named

    def engine(self, name: str) -> PrefillEngine | DecodeEngine:
        """An engine by its letter and number."""
        return (self.prefill if name[0] == "P" else self.decode)[int(name[1:])]

    def at(self, address: str) -> Process | None:
        """Who answers at an address, or under the name that peers have for it."""
        return self._listening.get(address)

    def listen(self, ranks: Sequence[Process]) -> None:
        """These processes answer from now on."""
        for rank in ranks:
            self._listening[rank.name] = self._listening[rank.peer_id] = rank

    def hush(self, ranks: Sequence[Process]) -> None:
        """Nobody answers there any more."""
        for rank in ranks:
            self._listening.pop(rank.name, None)
            self._listening.pop(rank.peer_id, None)

    @property
    def ranks(self) -> list[Process]:
        """Every process that lives."""
        producers: list[Process] = [rank for engine in self.prefill for rank in engine.ranks]
        return producers + [rank for engine in self.decode for rank in engine.ranks]

    def num_peers(self, rank: Process) -> int:
        """How many peers a rank can have met: producers have one address, consumers may come under a new one."""
        scenario = self.scenario
        if rank.name[0] == "D":
            return len(scenario.prefill) * scenario.producers
        return len(scenario.decode) * scenario.d_tp if scenario.stable_peer_ids else len(self.decode_processes)

    def note(self, line: str) -> None:
        if self.trace:
            self.trace(f"{self.loop.now:9.4f} {line}")

    def progress(self) -> None:
        """Something went on in an engine."""
        self.progress_at = self.loop.now

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the schedule to its end. Raises Violation, or whatever a session raises."""
        for plan in self.scenario.requests:
            self.prefill[plan.p].play(plan)
            if not plan.sequential:
                self.decode[plan.d].play(plan, plan.wanted_at)
        Disasters(self).schedule()
        self.loop.after(TICK_S, self._tick)
        self.loop.run()
        self.checks.end()

    def _tick(self) -> None:
        for prefill in self.prefill:
            prefill.tick()
        for decode in self.decode:
            decode.tick()
        going_on = bool(len(self.loop))
        if going_on or any(rank.session.transfers for rank in self.ranks):
            self.checks.horizon()
            self.loop.after(TICK_S if going_on else QUIET_TICK_S, self._tick)
