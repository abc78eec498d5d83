"""What one seed means. Most scenes are small, a few are large; each kind looks for faults of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tests.simulator.disasters import draw_crashes, draw_partitions, draw_stall, draw_stops
from tests.simulator.scenario import (
    BLOCK_TOKENS,
    FASTEST_RATE,
    SLOWEST_RATE,
    TIMING,
    Clock,
    EnginePlan,
    RequestPlan,
    Scenario,
    Weather,
)
from tests.simulator.script import draw_script

SHAPES = ((1, 1, 1), (1, 1, 1), (1, 1, 1), (2, 1, 1), (1, 1, 2), (2, 1, 2), (1, 2, 1), (2, 2, 1))
LARGE_SHAPES = ((4, 1, 1), (4, 2, 1), (4, 1, 2), (1, 1, 4), (2, 2, 2), (4, 2, 2))
MAX_TOKENS = 28


@dataclass(frozen=True)
class Kind:
    """A kind of scene: numbers of engines and requests to draw from, and what is special."""

    prefill: tuple[int, ...] = (1,)
    decode: tuple[int, ...] = (1,)
    requests: tuple[int, ...] = (1, 1, 2, 3, 4)
    shapes: tuple[tuple[int, int, int], ...] = SHAPES
    tight: bool = False
    stalls: bool = False
    calm: float = 0.35


PLAIN = Kind()
MANY = Kind(prefill=(1, 1, 2), decode=(1, 2, 3), requests=(2, 3, 4), shapes=SHAPES[:5])
TIGHT = Kind(decode=(1, 1, 2), requests=(3, 4, 6), shapes=SHAPES[:5], tight=True)
STALL = Kind(decode=(2, 3), requests=(3, 4, 5), shapes=SHAPES[:5], stalls=True, calm=1.0)
LARGE = Kind(prefill=(1, 2), decode=(1, 2), requests=(6, 8, 12), shapes=LARGE_SHAPES)
KINDS = 9 * (PLAIN,) + 4 * (MANY,) + 3 * (TIGHT,) + 3 * (STALL,) + (LARGE,)


def _request(rng: Random, index: int, engines: tuple[int, int], calm: bool, slow_prefill: bool) -> RequestPlan:
    num_tokens = rng.randint(2, MAX_TOKENS)
    wild = not calm
    return RequestPlan(
        transfer_id=f"t{index}",
        p=rng.randrange(engines[0]),
        d=index % engines[1],
        num_tokens=num_tokens,
        script=draw_script(rng, num_tokens, wild, slow_prefill),
        sequential=rng.random() < 0.3,
        wanted_at=rng.uniform(0, 2.0),
        hit=rng.choice((0, 0, 0, rng.randint(0, num_tokens), num_tokens)),
        decode_s=rng.choice((0.0, rng.uniform(0, 0.5), rng.uniform(0, 2.0))),
        unwanted_after=rng.expovariate(1.0) if wild and rng.random() < 0.25 else None,
        mismatch=wild and rng.random() < 0.08,
        digest=rng.random() < 0.15,
        comes=not wild or rng.random() < 0.92,
        tries_again=rng.random() < 0.3,
    )


def _weather(rng: Random, calm: bool) -> Weather:
    if rng.random() < (0.3 if calm else 0.1):
        return Weather(duplicate=rng.choice((0.0, 0.3)))
    worst = 0.06 if calm else 0.35
    quiet = rng.random() < 0.3
    return Weather(
        loss=0.0 if quiet else rng.uniform(0, worst),
        duplicate=0.0 if quiet else rng.uniform(0, 0.3),
        slow=rng.choice((0.0, 0.05, 0.3, 0.6)),
        notification_loss=rng.choice((0.0, 0.0, 0.02, 0.02 if calm else 0.4)),
        damage=rng.choice((0.0, 0.0, 0.02, 0.02 if calm else 0.3)),
        write_failure=rng.choice((0.0, 0.0, 0.02, 0.02 if calm else 0.3)),
        gather_failure=0.0 if calm else rng.choice((0.0, 0.0, 0.05, 0.4)),
    )


def _clock(rng: Random) -> Clock:
    offset_s = rng.choice((0.0, rng.uniform(-1e6, 1e6), rng.uniform(-30, 30)))
    return Clock(offset_s, rng.choice((1.0, SLOWEST_RATE, FASTEST_RATE, rng.uniform(SLOWEST_RATE, FASTEST_RATE))))


def _engine(rng: Random, kind: Kind, num_requests: int, calm: bool) -> EnginePlan:
    largest = -(-MAX_TOKENS // BLOCK_TOKENS)
    num_blocks = rng.randint(largest, largest + 3) if kind.tight else largest * num_requests
    slow = rng.random() < 0.1 and not calm
    return EnginePlan(_clock(rng), num_blocks, rng.uniform(2, 8) if slow else 1.0)


def _calm_timing(scenario: Scenario) -> Scenario:
    """A small ring makes some wait for others; waiting is no fault."""
    timing = scenario.consumer_timing
    return replace(scenario, consumer_timing=replace(timing, stall_timeout_s=200.0))


def draw(seed: int) -> Scenario:
    """The scenario of `seed`."""
    rng = Random(f"scenario {seed}")  # a string seeds the same on every machine
    kind = rng.choice(KINDS)
    scene = _scene(rng, kind)
    if kind.stalls:
        return draw_stall(rng, _calm_timing(scene))
    if scene.calm:
        return _calm_timing(scene)
    return replace(
        scene,
        partitions=draw_partitions(rng, scene),
        crashes=draw_crashes(rng, scene),
        stops=draw_stops(rng, scene),
    )


def _scene(rng: Random, kind: Kind) -> Scenario:
    calm = rng.random() < kind.calm
    p_tp, p_pp, d_tp = rng.choice(kind.shapes)
    num_kv_heads = rng.choice((1, 2, 4))
    engines = (rng.choice(kind.prefill), rng.choice(kind.decode))
    num_requests = rng.choice(kind.requests)
    num_ring_slots = rng.choice((2, 2, 4) if kind.tight else (2, 3, 8))
    slots = num_requests * p_tp * p_pp  # a slow prefill holds some on each leg, and the last is for another producer
    ample = num_ring_slots > slots or (num_ring_slots >= 4 and p_tp * p_pp == 1)
    slow_prefill = (ample or not calm) and rng.random() < 0.4
    lease_s = rng.choice((TIMING.lease_s, TIMING.lease_s, 1.5 * TIMING.lease_s))
    requests = (_request(rng, index, engines, calm, slow_prefill and not index) for index in range(num_requests))
    return Scenario(
        calm=calm,
        p_tp=p_tp,
        p_pp=p_pp,
        d_tp=d_tp,
        num_kv_heads=num_kv_heads,
        windows=tuple(rng.choice((0, 0, 6)) for _ in range(rng.randint(p_pp, 4))),
        slot_bytes=rng.choice((16, 24, 64)) * max(1, num_kv_heads // 2),
        num_send_slots=rng.choice((2, 2, 6)),
        num_ring_slots=num_ring_slots,
        window_slots=min(num_ring_slots, rng.choice((1, 2, 4))),
        codec_whims=rng.choice((0.0, 0.5, 1.0, 1.0)),
        weather=_weather(rng, calm),
        prefill=tuple(_engine(rng, kind, num_requests, calm) for _ in range(engines[0])),
        decode=tuple(_engine(rng, kind, num_requests, calm) for _ in range(engines[1])),
        requests=tuple(requests),
        producer_timing=replace(TIMING, lease_s=lease_s),
        consumer_timing=TIMING,
        tight=kind.tight,
        one_sided=rng.random() < 0.5,
        stable_peer_ids=rng.random() < 0.5,
        new_engine_id=rng.random() < 0.5,
    )
