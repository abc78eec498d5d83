"""What a session asks its runtime to do. Sessions decide; the runtime has the hands."""

from __future__ import annotations

from dataclasses import dataclass

from pdkv_connector.session.messages import Message, RingSpec, Slab
from pdkv_connector.types import PeerId, Span, TransferId


@dataclass(frozen=True, slots=True)
class LegKey:
    """One transfer between one producer rank and one consumer rank, as the local side names it."""

    transfer_id: TransferId
    peer: PeerId
    epoch: int


@dataclass(frozen=True, slots=True)
class SlabKey:
    """One slab of one leg."""

    leg: LegKey
    seq: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a control message; a lost one is repeated by the session's own timers."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Connect:
    """Prepare the transport for writes to `peer`, which calls itself `name`."""

    peer: PeerId
    metadata: bytes
    name: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop all connections to `peer`: it is gone, was replaced, or has been silent for long."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Gather:
    """Producer: encode these KV elements into send slot `send_slot`.

    Then report Gathered, GatherTooLarge when the payload would exceed `max_bytes`, or GatherFailed. `layers` are local
    layer indices, `heads` local head indices.
    """

    key: SlabKey
    layers: tuple[int, ...]
    tokens: Span
    heads: Span
    send_slot: int
    codec: str
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Write:
    """Producer: write send slot `send_slot` into `ring` slot `header.credit.slot` with `header` as its notification.

    `raw_bytes` is the size of its KV before encoding, `attempt` counts the writes of this slab from 1.
    """

    key: SlabKey
    send_slot: int
    ring: RingSpec
    header: Slab
    raw_bytes: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Scatter:
    """Consumer: check and decode receive slot `header.credit.slot`, then report Scattered or Damaged."""

    key: SlabKey
    header: Slab
    layers: tuple[int, ...]
    heads: Span


@dataclass(frozen=True, slots=True)
class Release:
    """Producer: the engine may free the blocks of this transfer."""

    transfer_id: TransferId
    outcome: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Consumer: all wanted KV is in the engine's blocks."""

    transfer_id: TransferId


@dataclass(frozen=True, slots=True)
class Fail:
    """Consumer: the KV will not come; nothing will be scattered for this transfer any more."""

    transfer_id: TransferId
    reason: str


@dataclass(frozen=True, slots=True)
class Digest:
    """Both sides: digest KV in the engine's blocks, then report Digested.

    Each part is (local layers, tokens, local heads); `role` says whose leg it is, producer or consumer.
    """

    key: LegKey
    parts: tuple[tuple[tuple[int, ...], Span, Span], ...]
    role: str


@dataclass(frozen=True, slots=True)
class Verified:
    """Consumer: digests of one leg's KV as it is here and as the producer has it; unequal ones mean damage."""

    transfer_id: TransferId
    local: tuple[str, ...]
    remote: tuple[str, ...]


Action = Digest | Verified | Send | Connect | Forget | Gather | Write | Scatter | Release | Deliver | Fail
