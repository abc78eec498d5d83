"""The data plane of the simulation: one-sided writes that land late, partly or not at all, then a notification."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from pdkv_connector.session import events as ev
from pdkv_connector.session.actions import Write
from pdkv_connector.session.messages import Slab, decode, encode
from tests.simulator.control import Control
from tests.simulator.loop import Loop
from tests.simulator.scenario import MAX_WRITE_S, Scenario
from tests.simulator.violation import require

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
    """One write in flight, into the memory of one consumer process."""

    source: PrefillRank
    target: DecodeRank
    write: Write
    over: bool = False


class Wire:
    """Carries writes; the source is read and the target changes at one instant between start and completion."""

    def __init__(self, loop: Loop, rng: Random, scenario: Scenario, control: Control) -> None:
        self._loop = loop
        self._rng = rng
        self._weather = scenario.weather
        self._control = control
        self.flights: list[Flight] = []

    def start(self, source: PrefillRank, target: DecodeRank, write: Write) -> None:
        """Begin a write; its end comes to `source` as Written or WriteFailed within MAX_WRITE_S."""
        flight = Flight(source, target, write)
        self._check_alone(flight)
        self.flights.append(flight)
        fast = self._rng.random() >= self._weather.slow
        landing_s = self._rng.uniform(0.001, 0.02) if fast else self._rng.uniform(0.02, MAX_WRITE_S - 0.2)
        completion_s = landing_s + self._rng.uniform(0, 0.01 if fast else 0.2)
        fails = self._rng.random() < self._weather.write_failure
        self._loop.after(landing_s, lambda: self._land(flight, fails))
        self._loop.after(completion_s, lambda: self._complete(flight, fails))

    def _check_alone(self, flight: Flight) -> None:
        slot = flight.write.header.credit.slot
        alive = [f for f in self.flights if f.target is flight.target and not f.source.dead]
        others = [f for f in alive if f.write.header.credit.slot == slot]
        what = f"{flight.write.key} is written into slot {slot} of {flight.target.instance}"
        require(not others, "b", f"{what} while another write to it is in flight")

    def disconnect(self, source: PrefillRank, target: DecodeRank) -> None:
        """Writes between these two may have landed; they do not land any more, and end as failed."""
        for flight in [f for f in self.flights if f.source is source and f.target is target]:
            if self._rng.random() < 0.5:
                self._land(flight, self._rng.random() < 0.5)
            self._end(flight, fails=True)

    def reads(self, source: PrefillRank, send_slot: int) -> bool:
        """True while a write reads this send slot."""
        return any(flight.source is source and flight.write.send_slot == send_slot for flight in self.flights)

    def _reachable(self, flight: Flight) -> bool:
        cut = self._control.cut(flight.source.number, flight.target.number)
        return not (cut or flight.source.dead or flight.target.dead)

    def _land(self, flight: Flight, damaged: bool) -> None:
        if flight.over or not self._reachable(flight):
            return
        payload = flight.source.read_send_slot(flight.write)
        damaged = damaged or self._rng.random() < self._weather.damage
        flight.target.written(flight.source, flight.write, payload, damaged)

    def _complete(self, flight: Flight, fails: bool) -> None:
        fails = fails or not self._reachable(flight)
        if not fails and not flight.over:
            self._notify(flight.target, flight.source.instance, flight.write.header)
        self._end(flight, fails)

    def _end(self, flight: Flight, fails: bool) -> None:
        if flight.over:
            return
        flight.over = True
        self.flights.remove(flight)
        key = flight.write.key
        event = ev.WriteFailed(key, "link down") if fails else ev.Written(key)
        self._loop.after(self._rng.uniform(0, 0.05), lambda: flight.source.feed(event))

    def _notify(self, target: DecodeRank, instance: str, header: Slab) -> None:
        frame = decode(encode(instance, header))
        require(isinstance(frame.message, Slab), "wire", "a slab header changed its type in transit")
        copies = 1 + (self._rng.random() < self._weather.duplicate)
        for _ in range(copies):
            if self._rng.random() >= self._weather.notification_loss:
                self._loop.after(self._control.delay_s(), lambda: target.feed(ev.Landed(frame.instance, header)))
