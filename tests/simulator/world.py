"""One schedule: both engines, the network between them, the disasters, and the checks at the end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulator.checks import Checks
from tests.simulator.control import Control
from tests.simulator.decode_engine import DecodeEngine
from tests.simulator.decode_rank import DecodeRank
from tests.simulator.loop import Loop
from tests.simulator.prefill_engine import PrefillEngine
from tests.simulator.prefill_rank import PrefillRank
from tests.simulator.scenario import Partition, Scenario
from tests.simulator.shape import consumer_facts, producer_facts
from tests.simulator.wire import Wire

TICK_S = 0.2


class World:
    """Owns the clock and every process. `note` receives one line per event when a trace is wanted."""

    def __init__(self, scenario: Scenario, rng: Random, trace: Callable[[str], None] | None = None) -> None:
        self.scenario = scenario
        self.rng = rng
        self.loop = Loop()
        self.control = Control(self.loop, rng, scenario)
        self.wire = Wire(self.loop, rng, scenario, self.control)
        self.decode_processes: dict[str, DecodeRank] = {}
        self._trace = trace
        self._num_named = 0
        self.progress_at = 0.0
        self.checks = Checks(self)
        self.prefill = PrefillEngine(self, producer_facts(scenario))
        self.decode = DecodeEngine(self, consumer_facts(scenario))

    # -- names --------------------------------------------------------------------------------------------------------

    @property
    def producers(self) -> list[PrefillRank]:
        return self.prefill.ranks

    def new_instance(self, side: str) -> str:
        self._num_named += 1
        return f"{side}#{self._num_named}"

    def new_checksum(self) -> int:
        self._num_named += 1
        return self._num_named

    def endpoint(self, number: int) -> str:
        return f"host:{number}"

    def number_of(self, endpoint: str) -> int:
        return int(endpoint.removeprefix("host:"))

    def consumer_at(self, peer: str) -> DecodeRank | None:
        return next((rank for rank in self.decode.ranks if rank.peer_id == peer), None)

    def note(self, line: str) -> None:
        if self._trace:
            self._trace(f"{self.loop.now:9.4f} {line}")

    def work_s(self) -> float:
        """How long a gather or a scatter takes."""
        return self.rng.choice((0.0, self.rng.uniform(0, 0.02), self.rng.uniform(0, 0.3)))

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the schedule to its end. Raises Violation, or whatever a session raises."""
        for plan in self.scenario.requests:
            self.prefill.play(plan)
            if not plan.sequential:
                self.decode.play(plan, plan.wanted_at)
        for at, side in self.scenario.crashes:
            self.loop.after(at, self.prefill.crash if side == "P" else self.decode.crash)
        for cut in self.scenario.partitions:
            if cut.noticed:
                self.loop.after(cut.start + 0.1, lambda cut=cut: self._notice(cut))  # type: ignore[misc]
        self.loop.after(TICK_S, self._tick)
        self.loop.run()
        self.checks.end()

    def _notice(self, cut: Partition) -> None:
        """The runtimes see the broken connection before any timer does."""
        consumer, producer = self.decode.ranks[cut.consumer], self.producers[cut.producer]
        self.decode.unreachable(consumer, self.endpoint(cut.producer))
        producer.session.book.lose_peer(consumer.peer_id, "connection lost")
        producer.carry_out(producer.session.tick(self.loop.now))

    def _tick(self) -> None:
        now = self.loop.now
        for rank in self.producers:
            rank.carry_out(rank.session.tick(now))
        for consumer in self.decode.ranks:
            consumer.carry_out(consumer.session.tick(now))
        if len(self.loop) or self._busy:
            self.checks.horizon()
            self.loop.after(TICK_S, self._tick)

    @property
    def _busy(self) -> bool:
        """True while some session has a transfer."""
        producers = any(rank.session.transfers for rank in self.producers)
        return producers or any(rank.session.transfers for rank in self.decode.ranks)
