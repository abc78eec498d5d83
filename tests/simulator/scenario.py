"""What a schedule is drawn from: the engines, the requests, the weather on the network, the disasters."""

from __future__ import annotations

from dataclasses import dataclass

from pdkv_connector.session.timing import Timing
from tests.simulator.script import Step

TIMING = Timing(
    lease_s=6.0,
    reclaim_s=2.0,
    heartbeat_s=0.5,
    retry_s=0.4,
    resend_s=0.8,
    peer_timeout_s=4.0,
    producer_timeout_s=8.0,
    stall_timeout_s=20.0,
)
MAX_DELAY_S = 1.0
MAX_WRITE_S = 1.5
SLOWEST_RATE, FASTEST_RATE = 0.9, 1.1
BLOCK_TOKENS = 4


@dataclass(frozen=True)
class Clock:
    """A process sees `offset_s` plus `rate` times the true time."""

    offset_s: float = 0.0
    rate: float = 1.0


@dataclass(frozen=True)
class EnginePlan:
    """One engine; `work_factor` above 1 makes it slow."""

    clock: Clock
    num_blocks: int
    work_factor: float = 1.0


@dataclass(frozen=True)
class RequestPlan:
    """One request on engines `p` and `d`. `wanted_at` counts from the start, or from P's finish when `sequential`.

    `decode_s` is how long D keeps the blocks once it has the KV. `tries_again`: a D that crashed gets it once more.
    """

    transfer_id: str
    p: int
    d: int
    num_tokens: int
    script: tuple[Step, ...]
    sequential: bool
    wanted_at: float
    hit: int
    decode_s: float
    unwanted_after: float | None = None
    mismatch: bool = False
    digest: bool = False
    comes: bool = True
    tries_again: bool = False

    @property
    def num_blocks(self) -> int:
        """Blocks of its prompt, on either engine."""
        return -(-self.num_tokens // BLOCK_TOKENS)


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

    @property
    def clear(self) -> bool:
        """True when nothing is lost, spoilt or late."""
        return self == Weather(duplicate=self.duplicate)


@dataclass(frozen=True)
class Partition:
    """No byte passes between rank `producer` and rank `consumer`, or only one way: `ways` are out of "<" and ">".

    ">" is from producer to consumer.
    """

    start: float
    stop: float
    producer: str
    consumer: str
    ways: str
    noticed: bool


@dataclass(frozen=True)
class Crash:
    """All processes of an engine die, and new ones answer at their addresses `down_s` later."""

    at: float
    engine: str
    down_s: float


@dataclass(frozen=True)
class Stop:
    """One process is stopped for a while (SIGSTOP)."""

    at: float
    process: str
    for_s: float


@dataclass(frozen=True)
class Scenario:
    """All that a schedule is drawn from, but for delays. A calm one has no disaster: everything must be delivered.

    `tight`: pools are so small that requests wait for blocks. `stalled` names an engine that comes to a halt in some
    way, beside others that must not notice. `codec_whims` is the chance that a slab has another codec than raw.
    `one_sided`: writes land in a stopped process too, as they do with RDMA and not with TCP.
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
    prefill: tuple[EnginePlan, ...]
    decode: tuple[EnginePlan, ...]
    requests: tuple[RequestPlan, ...]
    producer_timing: Timing
    consumer_timing: Timing
    tight: bool = False
    stalled: str = ""
    one_sided: bool = False
    partitions: tuple[Partition, ...] = ()
    crashes: tuple[Crash, ...] = ()
    stops: tuple[Stop, ...] = ()
    stable_peer_ids: bool = True
    new_engine_id: bool = True

    @property
    def producers(self) -> int:
        """Ranks of each prefill engine."""
        return self.p_tp * self.p_pp
