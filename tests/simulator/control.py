"""The control channel of the simulation: frames are encoded and decoded, lost, repeated, delayed and reordered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from pdkv_connector.session.messages import Message, decode, encode
from tests.simulator.loop import Loop
from tests.simulator.process import Process
from tests.simulator.scenario import MAX_DELAY_S, Scenario


class Control:
    """Sends to addresses; `at` finds the process that answers there when a message arrives, if one does."""

    def __init__(self, loop: Loop, rng: Random, scenario: Scenario, at: Callable[[str], Process | None]) -> None:
        self._loop = loop
        self._rng = rng
        self._weather = scenario.weather
        self._at = at
        self._cuts: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for cut in scenario.partitions:
            for way in cut.ways:
                pair = (cut.producer, cut.consumer) if way == ">" else (cut.consumer, cut.producer)
                self._cuts.setdefault(pair, []).append((cut.start, cut.stop))

    def delay_s(self) -> float:
        """How long one message takes."""
        if self._rng.random() < self._weather.slow:
            return 0.02 + (MAX_DELAY_S - 0.02) * self._rng.random()
        return 0.001 + 0.014 * self._rng.random()

    def cut(self, source: str, target: str) -> bool:
        """True while no byte passes from one name to the other."""
        cuts = self._cuts.get((source, target)) if self._cuts else None
        return bool(cuts) and any(start <= self._loop.now < stop for start, stop in cuts or ())

    def send(self, source: Process, target: str, message: Message) -> None:
        """Carry one message to whoever answers at the other end when it arrives."""
        frame = decode(encode(source.instance, message))
        copies = 1 + (self._rng.random() < self._weather.duplicate)
        for _ in range(copies):
            if self._rng.random() >= self._weather.loss:
                self._loop.after(self.delay_s(), partial(self._arrive, source, target, frame.instance, frame.message))

    def _arrive(self, source: Process, target: str, instance: str, message: Message) -> None:
        process = self._at(target)
        if process and not self.cut(source.name, process.name):
            process.hear(source.peer_id, instance, message)
