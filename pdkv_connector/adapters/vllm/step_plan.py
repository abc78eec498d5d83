"""What the scheduler half tells the worker halves each step, and what workers tell back once."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from pdkv_connector.types import Span, TransferId

Blocks = tuple[list[int], ...]


@dataclass(slots=True)
class Offer:
    """A request whose KV a consumer will fetch is known to the engine."""

    transfer_id: TransferId
    request_id: str
    num_prompt_tokens: int
    prompt_digest: str


@dataclass(slots=True)
class SendStep:
    """One step of a sent request: `computed` is what it computes itself, `cached` the prefix that it found."""

    transfer_id: TransferId
    cached: Span
    computed: Span
    new_blocks: Blocks

    @property
    def ready(self) -> Span:
        """Tokens whose KV is in the blocks once this step has run, and not before.

        A prefix counts as cached as soon as it is scheduled: another request may be computing it in this very step.
        """
        if self.cached and self.computed:
            return Span(self.cached.start, self.computed.stop)
        return self.cached or self.computed


@dataclass(slots=True)
class Receive:
    """Fetch KV: `needs` is the token range wanted per KV cache group, `blocks` where it goes.

    All needs empty: only tell the producer that it may free. A `reason`: do not even try, report the failure.
    """

    transfer_id: TransferId
    request_id: str
    engine_id: str = ""
    endpoints: tuple[str, ...] = ()
    tp_size: int = 1
    num_prompt_tokens: int = 0
    prompt_digest: str = ""
    needs: tuple[Span, ...] = ()
    blocks: Blocks = ()
    digest: bool = False
    reason: str = ""


@dataclass(slots=True)
class StepPlan(KVConnectorMetadata):
    """One step's news; every list is usually empty.

    expired: (transfer, group, number of leading blocks the engine freed); withdrawn: (transfer, reason, holds blocks);
    cancelled: (transfer, reason). pressed: a request waits for blocks while finished ones keep theirs.
    """

    offers: list[Offer] = field(default_factory=list)
    sends: list[SendStep] = field(default_factory=list)
    revoked: list[TransferId] = field(default_factory=list)
    expired: list[tuple[TransferId, int, int]] = field(default_factory=list)
    finished: list[TransferId] = field(default_factory=list)
    withdrawn: list[tuple[TransferId, str, bool]] = field(default_factory=list)
    receives: list[Receive] = field(default_factory=list)
    cancelled: list[tuple[TransferId, str]] = field(default_factory=list)
    pressed: bool = False


@dataclass
class RankReport(KVConnectorWorkerMetadata):
    """By request, of all ranks so far: digests of received KV per layer, here and at the producer; why KV is lost."""

    digests: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    losses: dict[str, str] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> RankReport:
        assert isinstance(other, RankReport)
        merged = dict(self.digests)
        for request_id, (local, remote) in other.digests.items():
            ours, theirs = merged.get(request_id, ((), ()))
            merged[request_id] = (ours + local, theirs + remote)
        return RankReport(merged, other.losses | self.losses)


@dataclass
class RankEndpoint(KVConnectorHandshakeMetadata):
    """Where a worker's control channel listens."""

    endpoint: str
