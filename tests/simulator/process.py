"""One process of the simulation: it has its own clock, and it can be stopped or die."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pdkv_connector.session import events as ev
from pdkv_connector.session.actions import Action
from pdkv_connector.session.messages import Message
from tests.simulator.scenario import Clock

if TYPE_CHECKING:
    from tests.simulator.world import World


class Process:
    """Feeds a session in order. Stopped, it handles nothing, and everything at once when it goes on (SIGSTOP, SIGCONT).

    `name` is its address, `instance` tells it from others that had the same address; `peer_id` is how peers call it.
    """

    hands: dict[type, Callable[[Any, Any], None]]
    session: Any

    def __init__(self, world: World, name: str, clock: Clock, work_factor: float) -> None:
        self.world = world
        self.name = name
        self.instance = world.new_instance(name)
        self.peer_id = name
        self.dead = False
        self.stopped = False
        self.disturbed_at = float("-inf")
        self._clock = clock
        self._work_factor = work_factor
        self._busy = False
        self._backlog: list[Callable[[], None]] = []

    @property
    def now(self) -> float:
        """What this process' clock shows."""
        return self._clock.offset_s + self._clock.rate * self.world.loop.now

    def work_s(self) -> float:
        """How long a gather or a scatter takes."""
        rng = self.world.rng
        return self._work_factor * rng.choice((0.0, 0.02 * rng.random(), 0.3 * rng.random()))

    def does(self, call: Callable[[], None]) -> None:
        """Make a call in this process: now, when it goes on, or never."""
        if self.stopped:
            self._backlog.append(call)
        elif not self.dead:
            call()

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Make a call in this process in `delay_s`."""
        self.world.loop.after(delay_s, partial(self.does, call))

    def works(self, call: Callable[[], None]) -> None:
        """Make a call when a gather or a scatter is done: at once, as on a CPU, or later."""
        delay_s = self.work_s()
        if delay_s:
            self.later(delay_s, call)
        else:
            self.does(call)

    def feed(self, event: ev.ProducerEvent | ev.ConsumerEvent) -> None:
        """Give the session an event and carry out what it answers."""
        self.does(partial(self._handle, event))

    def hear(self, peer: str, instance: str, message: Message) -> None:
        """A control message came."""
        self.feed(ev.Heard(peer, instance, message))

    def _handle(self, event: ev.ProducerEvent | ev.ConsumerEvent) -> None:
        if self.world.trace:
            self.world.note(f"{self.name} <- {event}")
        if not self._busy:
            self.carry_out(self.session.tick(self.now))
        self._busy = True
        self.carry_out(self.session.handle(event, self.now))

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if self.world.trace:
                self.world.note(f"{self.name} -> {action}")
            self.hands[type(action)](self, action)

    def tick(self) -> None:
        """Time passes, if it does here; an idle session is spared the ticks from which nothing would follow."""
        busy = bool(self.session.transfers)
        if not self.stopped and not self.dead and (busy or self._busy):
            self._busy = busy
            self.carry_out(self.session.tick(self.now))

    def stop(self) -> None:
        """Handle nothing from now on; the last tick was a moment ago."""
        if not self.stopped:
            self.carry_out(self.session.tick(self.now))
            self._busy = True
        self.stopped, self.disturbed_at = True, self.world.loop.now

    def go_on(self) -> None:
        """Handle all that came meanwhile, then look at the clock."""
        if not self.stopped:
            return
        self.world.note(f"{self.name} goes on")
        self.stopped, self.disturbed_at = False, self.world.loop.now
        backlog, self._backlog = self._backlog, []
        for call in backlog:
            self.does(call)
        self.tick()

    def die(self) -> None:
        """Nothing of this process happens any more."""
        self.dead, self.stopped = True, False
        self._backlog.clear()
