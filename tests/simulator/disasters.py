"""Crashes, stops, partitions and stalls: drawn from a seed, and inflicted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from pdkv_connector.session import events as ev
from pdkv_connector.types import Span
from tests.simulator.scenario import TIMING, Crash, Partition, Scenario, Stop, Weather
from tests.simulator.script import Step

if TYPE_CHECKING:
    from tests.simulator.world import World

STALL_S = 60.0
STALL_LEASE_S = 30.0
STALLS = ("stop", "crawl", "<>", "<", ">", "prefill")


def producer_names(scene: Scenario) -> list[str]:
    """Every prefill rank, by its address."""
    return [f"P{engine}.{rank}" for engine in range(len(scene.prefill)) for rank in range(scene.producers)]


def consumer_names(scene: Scenario) -> list[str]:
    """Every decode rank, by its address."""
    return [f"D{engine}.{rank}" for engine in range(len(scene.decode)) for rank in range(scene.d_tp)]


def draw_partitions(rng: Random, scene: Scenario) -> tuple[Partition, ...]:
    """None, mostly; else one, in one direction or both."""
    if rng.random() < 0.65:
        return ()
    start = rng.uniform(0, 4.0)
    stop = start + rng.choice((rng.uniform(0.1, 3.0), rng.uniform(3.0, 15.0)))
    ways = rng.choice(("<>", "<>", "<", ">"))
    pair = (rng.choice(producer_names(scene)), rng.choice(consumer_names(scene)))
    return (Partition(start, stop, *pair, ways, ways == "<>" and rng.random() < 0.3),)


def draw_crashes(rng: Random, scene: Scenario) -> tuple[Crash, ...]:
    """Up to two, of any engine; a new process answers at once or after a while."""
    engines = [f"P{index}" for index in range(len(scene.prefill))] + [f"D{index}" for index in range(len(scene.decode))]
    sides = [[name for name in engines if name[0] == side] for side in "PD"]
    return tuple(
        Crash(
            rng.uniform(0.05, 5.0),
            rng.choice(rng.choice(sides)),
            rng.choice((0.0, 0.0, rng.uniform(0.05, 3.0), rng.uniform(3.0, 15.0))),
        )
        for _ in range(rng.choice((0, 0, 1, 1, 2)))
    )


def draw_stops(rng: Random, scene: Scenario) -> tuple[Stop, ...]:
    """One process, mostly none."""
    if rng.random() < 0.7:
        return ()
    names = rng.choice((producer_names(scene), consumer_names(scene)))
    for_s = rng.choice((rng.uniform(0.1, 2.0), rng.uniform(2.0, 6.0), rng.uniform(6.0, 25.0)))
    return (Stop(rng.uniform(0.0, 5.0), rng.choice(names), for_s),)


def draw_stall(rng: Random, scene: Scenario) -> Scenario:
    """An engine stops, can no longer be reached or crawls, or one prefill does; leases outlast all patience."""
    ranks = [name for name in consumer_names(scene) if name.startswith("D0.")]
    at, how = rng.uniform(0.0, 2.5), rng.choice((*STALLS, "producer", "producer"))
    scene = replace(
        scene,
        stalled={"prefill": "", "producer": "P0"}.get(how, "D0"),
        weather=Weather(duplicate=scene.weather.duplicate),
        producer_timing=replace(TIMING, lease_s=STALL_LEASE_S),
    )
    if how == "prefill":
        return _slow_first(scene)
    if how == "producer":
        return _stopped_producer(scene, at)
    if how == "crawl":
        return replace(scene, decode=(replace(scene.decode[0], work_factor=20.0), *scene.decode[1:]))
    if how == "stop":
        return replace(scene, stops=tuple(Stop(at, name, STALL_S) for name in ranks))
    cuts = (
        Partition(at, at + STALL_S, producer, name, how, False) for name in ranks for producer in producer_names(scene)
    )
    return replace(scene, partitions=tuple(cuts))


def _slow_first(scene: Scenario) -> Scenario:
    """The first prefill stands still after its first token, and all requests are of one decode engine."""
    first, *rest = scene.requests
    script = (
        Step(0.0, "offer"),
        Step(0.0, "compute", Span(0, 1)),
        Step(STALL_S / 3, "compute", Span(1, first.num_tokens)),
        Step(0.0, "finish"),
    )
    first = replace(first, script=script, sequential=False, wanted_at=0.0, hit=0)
    enough = 4 if scene.producers == 1 else 8
    return replace(
        scene,
        requests=tuple(replace(plan, d=0) for plan in (first, *rest)),
        decode=(replace(scene.decode[0], num_blocks=sum(plan.num_blocks for plan in scene.requests)),),
        num_ring_slots=max(scene.num_ring_slots, enough),
    )


def _stopped_producer(scene: Scenario, at: float) -> Scenario:
    """Prefill engine 0 of two stops; decode engine 0 wants KV of both."""
    requests = tuple(replace(plan, p=index % 2, d=0) for index, plan in enumerate(scene.requests))
    num_blocks = sum(plan.num_blocks for plan in requests)
    scene = replace(
        scene,
        requests=requests,
        prefill=2 * (replace(scene.prefill[0], num_blocks=num_blocks),),
        decode=(replace(scene.decode[0], num_blocks=num_blocks),),
        num_ring_slots=8,
    )
    names = [name for name in producer_names(scene) if name.startswith("P0.")]
    return replace(scene, stops=tuple(Stop(at / 2, name, STALL_S) for name in names))


class Disasters:
    """Inflicts what the scenario has planned."""

    def __init__(self, world: World) -> None:
        self._world = world

    def schedule(self) -> None:
        """Plan all of them."""
        world, scenario = self._world, self._world.scenario
        for crash in scenario.crashes:
            world.loop.after(crash.at, partial(world.engine(crash.engine).crash, crash.down_s))
        for stop in scenario.stops:
            world.loop.after(stop.at, partial(self._stop, stop))
        for cut in scenario.partitions:
            if cut.noticed:
                world.loop.after(cut.start + 0.1, partial(self._notice, cut))

    def _stop(self, stop: Stop) -> None:
        world = self._world
        if (process := world.at(stop.process)) is None:
            return
        world.note(f"{stop.process} is stopped for {stop.for_s:.2f} s")
        process.stop()
        world.checks.silence.begins(stop.process, stop.for_s)
        world.loop.after(stop.for_s, process.go_on)

    def _notice(self, cut: Partition) -> None:
        """The runtime sees the broken connection before any timer does."""
        if consumer := self._world.at(cut.consumer):
            consumer.feed(ev.Unreachable(cut.producer, "connection lost"))
