"""What a runtime tells its sessions."""

from __future__ import annotations

from dataclasses import dataclass

from pdkv_connector.session.actions import LegKey, SlabKey
from pdkv_connector.session.messages import Message, Slab
from pdkv_connector.types import PeerId, Span, TransferId


@dataclass(frozen=True, slots=True)
class Heard:
    """A control message came from `peer`, whose process is `instance`."""

    peer: PeerId
    instance: str
    message: Message


@dataclass(frozen=True, slots=True)
class Landed:
    """Consumer: a slab notification came; `instance` is the writer's process."""

    instance: str
    header: Slab


@dataclass(frozen=True, slots=True)
class Offered:
    """Producer: the engine accepted the request of this transfer (it may still be queued)."""

    transfer_id: TransferId
    num_prompt_tokens: int
    prompt_digest: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Producer: the KV of `tokens` is in the blocks for every local layer index in `layers`."""

    transfer_id: TransferId
    layers: Span
    tokens: Span


@dataclass(frozen=True, slots=True)
class Revoked:
    """Producer: the engine preempted the request; nothing not yet gathered may be read until it is Ready again."""

    transfer_id: TransferId


@dataclass(frozen=True, slots=True)
class Finished:
    """Producer: the engine finished the request and waits for Release before it frees the blocks."""

    transfer_id: TransferId


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Producer: the request was aborted or failed in the engine; `holds_blocks` says whether it waits for Release."""

    transfer_id: TransferId
    reason: str
    holds_blocks: bool


@dataclass(frozen=True, slots=True)
class Pressed:
    """Producer: a request waits in the engine because too few blocks are free."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """Producer: a Gather is done."""

    key: SlabKey
    encoded_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class GatherTooLarge:
    """Producer: the payload of a Gather exceeds its `max_bytes`."""

    key: SlabKey


@dataclass(frozen=True, slots=True)
class GatherFailed:
    """Producer: a Gather is not possible, for `reason`."""

    key: SlabKey
    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """Producer: a Write is complete at the target."""

    key: SlabKey


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """Producer: a Write did not complete; the target slot may hold any part of it."""

    key: SlabKey
    reason: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Consumer: the engine allocated blocks and wants KV.

    endpoints: control endpoint of each producer rank, index `pp_rank * tp_size + tp_rank`.
    needs: for each local layer index, the token range wanted.
    digest: compare digests of the KV on both sides when it is whole.
    """

    transfer_id: TransferId
    engine_id: str
    endpoints: tuple[str, ...]
    tp_size: int
    num_prompt_tokens: int
    prompt_digest: str
    needs: tuple[Span, ...]
    digest: bool = False


@dataclass(frozen=True, slots=True)
class Unwanted:
    """Consumer: the engine gave the request up; ends in Fail once nothing can touch its blocks."""

    transfer_id: TransferId
    reason: str


@dataclass(frozen=True, slots=True)
class Scattered:
    """Consumer: a Scatter is done."""

    key: SlabKey


@dataclass(frozen=True, slots=True)
class Damaged:
    """Consumer: a slab failed its checksum or did not decode."""

    key: SlabKey
    reason: str


@dataclass(frozen=True, slots=True)
class Digested:
    """Both sides: a Digest is done; `digests` has one entry for each layer of each part."""

    key: LegKey
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Consumer: nothing can be sent to `peer`, for `reason`."""

    peer: PeerId
    reason: str


ProducerEvent = (
    Heard
    | Offered
    | Ready
    | Revoked
    | Finished
    | Withdrawn
    | Pressed
    | Gathered
    | GatherTooLarge
    | GatherFailed
    | Written
    | WriteFailed
    | Digested
)
ConsumerEvent = Heard | Landed | Unreachable | Wanted | Unwanted | Scattered | Damaged | Digested
