"""The data plane of the simulation: one-sided writes that land late, partly or not at all, then a notification."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from pdkv_connector.session import events as ev
from pdkv_connector.session.actions import Write
from pdkv_connector.session.messages import Slab, decode, encode
from tests.simulator.control import Control
from tests.simulator.loop import Loop
from tests.simulator.scenario import MAX_WRITE_S, Scenario
from tests.simulator.violation import Violation

if TYPE_CHECKING:
    from tests.simulator.decode_rank import DecodeRank
    from tests.simulator.prefill_rank import PrefillRank


@dataclass(frozen=True)
class Payload:
    """What a slab holds. Every element of KV is unique: (transfer, layer, head, token); a slab holds a box of them."""

    transfer_id: str
    layers: tuple[str, ...]
    heads: tuple[int, int]
    tokens: tuple[int, int]
    checksum: int
    damaged: bool = False


@dataclass(eq=False)
class Flight:
    """One write in flight, into the memory of one consumer process.

    `stray` is what a kernel holds of it for a process that is stopped or dead: it may land when nobody expects it.
    """

    source: PrefillRank
    target: DecodeRank
    write: Write
    over: bool = False
    stray: Payload | None = None


class Wire:
    """Carries writes; the source is read and the target changes at one instant between start and completion."""

    def __init__(self, loop: Loop, rng: Random, scenario: Scenario, control: Control) -> None:
        self._loop = loop
        self._rng = rng
        self._weather = scenario.weather
        self._one_sided = scenario.one_sided
        self._control = control
        self.flights: list[Flight] = []

    def start(self, source: PrefillRank, target: DecodeRank, write: Write) -> None:
        """Begin a write; its end comes to `source` as Written or WriteFailed within MAX_WRITE_S."""
        flight = Flight(source, target, write)
        self._check_alone(flight)
        self.flights.append(flight)
        rng = self._rng
        fast = rng.random() >= self._weather.slow
        landing_s = 0.001 + rng.random() * (0.019 if fast else MAX_WRITE_S - 0.201)
        completion_s = landing_s + rng.random() * (0.01 if fast else 0.2)
        fails = rng.random() < self._weather.write_failure
        self._loop.after(landing_s, partial(self._land, flight, fails))
        self._loop.after(completion_s, partial(self._complete, flight, fails))

    def _check_alone(self, flight: Flight) -> None:
        slot = flight.write.header.credit.slot
        here = [f for f in self.flights if f.target is flight.target and not (f.source.dead or f.stray)]
        if any(f.write.header.credit.slot == slot for f in here):
            what = f"{flight.write.key} is written into slot {slot} of {flight.target.instance}"
            raise Violation("b", f"{what} while another write to it is in flight")

    def disconnect(self, source: PrefillRank, target: DecodeRank) -> None:
        """Writes between these two may have landed; they do not land any more, and end as failed."""
        for flight in [f for f in self.flights if f.source is source and f.target is target]:
            if self._rng.random() < 0.5:
                self._land(flight, self._rng.random() < 0.5)
            self._end(flight, fails=True)

    def reads(self, source: PrefillRank, send_slot: int) -> bool:
        """True while a write reads this send slot."""
        return any(flight.source is source and flight.write.send_slot == send_slot for flight in self.flights)

    # -- landing ------------------------------------------------------------------------------------------------------

    def _land(self, flight: Flight, damaged: bool) -> None:
        source, target = flight.source, flight.target
        if target.dead or self._control.cut(source.name, target.name) or (flight.over and not flight.stray):
            return
        if source.dead and not flight.stray:
            if self._rng.random() < 0.5:
                return  # else its kernel had the bytes already
            flight.stray = source.read_send_slot(flight.write)
        if idle := self._idle(flight):
            flight.stray = flight.stray or source.read_send_slot(flight.write)
            idle.does(partial(self._land, flight, damaged))
            return
        payload = flight.stray or source.read_send_slot(flight.write)
        damaged = damaged or self._rng.random() < self._weather.damage
        target.written(source, flight.write, payload, damaged, stray=flight.stray is not None)
        if flight.over:
            self._notify(flight)

    def _idle(self, flight: Flight) -> PrefillRank | DecodeRank | None:
        """Who must run again before the bytes move."""
        if self._one_sided:
            return None
        return next((process for process in (flight.source, flight.target) if process.stopped), None)

    # -- the end at the source ----------------------------------------------------------------------------------------

    def _complete(self, flight: Flight, fails: bool) -> None:
        if flight.over:
            return
        if idle := self._idle(flight):
            idle.does(partial(self._complete, flight, fails))
            self._loop.after(MAX_WRITE_S * self._rng.random(), partial(self._end, flight, True))
            return
        source, target = flight.source, flight.target
        heard = not self._control.cut(source.name, target.name) and not source.dead and not target.dead
        if heard and not fails:
            self._notify(flight)
        self._end(flight, fails or not heard or self._control.cut(target.name, source.name))

    def _end(self, flight: Flight, fails: bool) -> None:
        if flight.over:
            return
        flight.over = True
        self.flights.remove(flight)
        key = flight.write.key
        event = ev.WriteFailed(key, "link down") if fails else ev.Written(key)
        self._loop.after(0.05 * self._rng.random(), partial(flight.source.feed, event))

    def _notify(self, flight: Flight) -> None:
        frame = decode(encode(flight.source.instance, flight.write.header))
        header = frame.message
        assert isinstance(header, Slab), "a slab header changed its type in transit"
        copies = 1 + (self._rng.random() < self._weather.duplicate)
        for _ in range(copies):
            if self._rng.random() >= self._weather.notification_loss:
                landed = ev.Landed(frame.instance, header)
                self._loop.after(self._control.delay_s(), partial(flight.target.feed, landed))
