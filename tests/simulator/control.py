"""The control channel of the simulation: frames are encoded and decoded, lost, repeated, delayed and reordered."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from pdkv_connector.session.messages import Message, decode, encode
from tests.simulator.loop import Loop
from tests.simulator.scenario import MAX_DELAY_S, Scenario

Deliver = Callable[[str, Message], None]


class Control:
    """Sends between rank numbers; `receive` takes the sender's instance and the message."""

    def __init__(self, loop: Loop, rng: Random, scenario: Scenario) -> None:
        self._loop = loop
        self._rng = rng
        self._weather = scenario.weather
        self._partitions = scenario.partitions

    def delay_s(self) -> float:
        """How long one message takes."""
        if self._rng.random() < self._weather.slow:
            return self._rng.uniform(0.02, MAX_DELAY_S)
        return self._rng.uniform(0.001, 0.015)

    def cut(self, producer: int, consumer: int) -> bool:
        """True while no byte passes between these ranks."""
        now = self._loop.now
        return any(
            (cut.producer, cut.consumer) == (producer, consumer) and cut.start <= now < cut.stop
            for cut in self._partitions
        )

    def send(self, producer: int, consumer: int, instance: str, message: Message, receive: Deliver) -> None:
        """Carry one message to whoever answers at the other end when it arrives."""
        frame = decode(encode(instance, message))
        copies = 1 + (self._rng.random() < self._weather.duplicate)
        for _ in range(copies):
            if self._rng.random() >= self._weather.loss:
                self._loop.after(
                    self.delay_s(), lambda: self._arrive(producer, consumer, frame.instance, frame.message, receive)
                )

    def _arrive(self, producer: int, consumer: int, instance: str, message: Message, receive: Deliver) -> None:
        if not self.cut(producer, consumer):
            receive(instance, message)
