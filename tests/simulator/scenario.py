"""What one seed means: the shape of the engines, the requests, the weather on the network, the disasters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from pdkv_connector.session.timing import Timing
from tests.simulator.script import Step, draw_script

SHAPES = ((1, 1, 1), (1, 1, 1), (2, 1, 1), (1, 1, 2), (2, 1, 2), (1, 2, 1), (2, 2, 1), (4, 1, 2))
TIMING = Timing(
    lease_s=6.0,
    heartbeat_s=0.5,
    retry_s=0.4,
    resend_s=0.8,
    peer_timeout_s=4.0,
    producer_timeout_s=8.0,
    stall_timeout_s=20.0,
)
MAX_DELAY_S = 1.0
MAX_WRITE_S = 1.5


@dataclass(frozen=True)
class RequestPlan:
    """One request on both engines. `wanted_at` counts from the start, or from P's finish when `sequential`."""

    transfer_id: str
    num_tokens: int
    script: tuple[Step, ...]
    sequential: bool
    wanted_at: float
    hit: int
    unwanted_after: float | None = None
    mismatch: bool = False
    digest: bool = False
    comes: bool = True


@dataclass(frozen=True)
class Weather:
    """Chances, per message or per write."""

    loss: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0
    notification_loss: float = 0.0
    damage: float = 0.0
    write_failure: float = 0.0
    gather_failure: float = 0.0


@dataclass(frozen=True)
class Partition:
    """No byte passes between producer rank and consumer rank from `start` to `stop`."""

    start: float
    stop: float
    producer: int
    consumer: int
    noticed: bool


@dataclass(frozen=True)
class Scenario:
    """All that a schedule is drawn from, but for delays. A calm one has no disaster: everything must be delivered.

    `codec_whims` is the chance that a slab has another codec than raw.
    """

    calm: bool
    p_tp: int
    p_pp: int
    d_tp: int
    num_kv_heads: int
    windows: tuple[int, ...]
    slot_bytes: int
    num_send_slots: int
    num_ring_slots: int
    window_slots: int
    codec_whims: float
    weather: Weather
    requests: tuple[RequestPlan, ...]
    producer_timing: Timing = TIMING
    stall_timeout_s: float = TIMING.stall_timeout_s
    partitions: tuple[Partition, ...] = ()
    crashes: tuple[tuple[float, str], ...] = ()
    stable_peer_ids: bool = True
    new_engine_id: bool = True


def _request(rng: Random, index: int, calm: bool, slow_prefill: bool) -> RequestPlan:
    num_tokens = rng.randint(2, 28)
    sequential = rng.random() < 0.3
    wild = not calm
    return RequestPlan(
        transfer_id=f"t{index}",
        num_tokens=num_tokens,
        script=draw_script(rng, num_tokens, wild, slow_prefill),
        sequential=sequential,
        wanted_at=rng.uniform(0, 2.0),
        hit=rng.choice((0, 0, 0, rng.randint(0, num_tokens), num_tokens)),
        unwanted_after=rng.expovariate(1.0) if wild and rng.random() < 0.25 else None,
        mismatch=wild and rng.random() < 0.08,
        digest=rng.random() < 0.15,
        comes=not wild or rng.random() < 0.92,
    )


def _weather(rng: Random, calm: bool) -> Weather:
    worst = 0.06 if calm else 0.35
    clear = rng.random() < 0.3
    return Weather(
        loss=0.0 if clear else rng.uniform(0, worst),
        duplicate=0.0 if clear else rng.uniform(0, 0.3),
        slow=rng.choice((0.0, 0.05, 0.3, 0.6)),
        notification_loss=rng.choice((0.0, 0.0, 0.02, 0.02 if calm else 0.4)),
        damage=rng.choice((0.0, 0.0, 0.02, 0.02 if calm else 0.3)),
        write_failure=rng.choice((0.0, 0.0, 0.02, 0.02 if calm else 0.3)),
        gather_failure=0.0 if calm else rng.choice((0.0, 0.0, 0.05, 0.4)),
    )


def _partition(rng: Random, producers: int, consumers: int) -> Partition:
    start = rng.uniform(0, 4.0)
    stop = start + rng.choice((rng.uniform(0.1, 3.0), rng.uniform(3.0, 15.0)))
    return Partition(start, stop, rng.randrange(producers), rng.randrange(consumers), rng.random() < 0.3)


def draw(seed: int) -> Scenario:
    """The scenario of `seed`."""
    rng = Random(f"scenario {seed}")  # a string seeds the same on every machine
    calm = rng.random() < 0.35
    p_tp, p_pp, d_tp = rng.choice(SHAPES)
    num_kv_heads = rng.choice((1, 2, 4))
    disasters = 0 if calm else rng.choice((0, 0, 1, 1, 2))
    crashes = tuple((rng.uniform(0.05, 5.0), rng.choice("PD")) for _ in range(disasters))
    partitions = () if calm or rng.random() < 0.6 else (_partition(rng, p_tp * p_pp, d_tp),)
    num_requests = rng.choice((1, 1, 2, 3, 4))
    num_ring_slots = rng.choice((2, 3, 8))
    ample = num_ring_slots >= num_requests * p_tp * p_pp  # a slow prefill may hold its slots, but not starve others
    slow_prefill = (ample or not calm) and rng.random() < 0.4
    lease_s = rng.choice((TIMING.lease_s, TIMING.lease_s, 1.5 * TIMING.lease_s))
    return Scenario(
        calm=calm,
        p_tp=p_tp,
        p_pp=p_pp,
        d_tp=d_tp,
        num_kv_heads=num_kv_heads,
        windows=tuple(rng.choice((0, 0, 6)) for _ in range(rng.randint(p_pp, 4))),
        slot_bytes=rng.choice((16, 24, 64)) * max(1, num_kv_heads // 2),
        num_send_slots=rng.choice((1, 2, 6)),
        num_ring_slots=num_ring_slots,
        window_slots=rng.choice((1, 2, 4)),
        codec_whims=rng.choice((0.0, 0.5, 1.0, 1.0)),
        weather=_weather(rng, calm),
        requests=tuple(_request(rng, index, calm, slow_prefill and not index) for index in range(num_requests)),
        producer_timing=replace(TIMING, lease_s=lease_s),
        stall_timeout_s=200.0 if calm else TIMING.stall_timeout_s,  # a small ring makes some wait for others
        partitions=partitions,
        crashes=crashes,
        stable_peer_ids=rng.random() < 0.5,
        new_engine_id=rng.random() < 0.5,
    )
