"""Control messages: typed, tagged, versioned and bounded.

A frame is one msgpack array `[protocol_version, sender_instance, message]`. Durations travel, deadlines never do.
Slab notifications use the same frame and ride with the transport's write, so data is in place when one is read.

Direction: C -> P is consumer (decode) to producer (prefill).

    Hello        C -> P   who I am, where my receive ring is, what I can decode and how fast
    Welcome      P -> C   who I am, what my layers look like, which codecs my slabs may have
    Refuse       P -> C   no, for this reason (about the handshake, or about one transfer)
    Register     C -> P   the KV wanted of one transfer, and the first credits
    Alive        P -> C   where the named transfers stand (answers Register and Heartbeat)
    Slab         P -> C   one slab now lies in a receive slot
    Ack          C -> P   all slabs received so far, all credits outstanding (cumulative, idempotent)
    Heartbeat    C -> P   these transfers still matter: renew their leases
    Delivered    C -> P   everything wanted is here
    Abort        both     this transfer is over, for this reason
    Closed       P -> C   no write for this transfer will come any more
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from pdkv_connector.errors import ProtocolError
from pdkv_connector.types import Credit, Span

PROTOCOL_VERSION = 3
MAX_FRAME_BYTES = 1 << 20
MAX_NOTIFICATION_BYTES = 1 << 10
MAX_EXPANSION = 4
"""A slab decodes to at most this many times the bytes of a slot."""
MAX_CREDITS = 4096
"""A leg has at most this many slots lent."""

Name = Annotated[str, Meta(max_length=256)]
Reason = Annotated[str, Meta(max_length=1024)]
Count = Annotated[int, Meta(ge=0, lt=1 << 48)]
Address = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Blob = Annotated[bytes, Meta(max_length=1 << 17)]
Seconds = Annotated[float, Meta(ge=0.01, le=86400)]


class RefuseCode(enum.StrEnum):
    """Why a producer said no; the consumer's policy depends on it."""

    INCOMPATIBLE = "incompatible"
    HELLO_REQUIRED = "hello_required"
    PROMPT_DIFFERS = "prompt_differs"
    ENDED = "ended"
    UNKNOWN = "unknown"
    BAD_REQUEST = "bad_request"


class ProducerState(enum.StrEnum):
    """Where a transfer stands on the producer, as told to the consumer."""

    UNKNOWN = "unknown"
    QUEUED = "queued"
    STREAMING = "streaming"


class LayerFact(Struct, frozen=True, array_like=True):
    """Shape of one layer's KV on one rank: `[num_planes, heads, tokens, head_dim]` of `dtype`.

    `heads` are global KV head indices held by the rank; `window` is the attention window in tokens, 0 for full.
    """

    name: Name
    num_planes: Count
    heads: Span
    head_dim: Count
    dtype: Name
    window: Count


class Facts(Struct, frozen=True, array_like=True):
    """What must agree between two engines before KV may move; `codecs` can be encoded and decoded, `raw` among them."""

    model: Name
    model_digest: Name
    num_kv_heads: Count
    tp_rank: Count
    tp_size: Count
    pp_rank: Count
    pp_size: Count
    codecs: Annotated[tuple[Name, ...], Meta(max_length=16)]
    layers: Annotated[tuple[LayerFact, ...], Meta(max_length=2048)]


class RingSpec(Struct, frozen=True, array_like=True):
    """A registered receive ring: slot `i` starts at `address + i * slot_bytes`."""

    address: Address
    slot_bytes: Count
    num_slots: Count
    device_id: Count
    memory_kind: Name


class Want(Struct, frozen=True, array_like=True):
    """KV wanted from one producer rank: `tokens` of the producer's `layers` (indices), its local `heads`."""

    layers: Annotated[tuple[Count, ...], Meta(max_length=2048)]
    tokens: Span
    heads: Span


class Standing(Struct, frozen=True, array_like=True):
    """Where one transfer stands on the producer; `num_tokens_ready` is computed KV, a sign of progress."""

    transfer_id: Name
    epoch: Count
    state: ProducerState
    num_tokens_ready: Count


class Hello(Struct, frozen=True, array_like=True, tag="hello"):
    """First message of a consumer to a producer.

    `decode_bytes_per_s` is the KV decoded per second with each of `facts.codecs`, position by position; 0 is unknown.
    """

    engine_id: Name
    protocol_min: Count
    protocol_max: Count
    facts: Facts
    transport: Name
    transport_metadata: Blob
    ring: RingSpec
    decode_bytes_per_s: Annotated[tuple[Count, ...], Meta(max_length=16)]


class Welcome(Struct, frozen=True, array_like=True, tag="welcome"):
    """The producer accepts; every slab will have one of `codecs`.

    `lease_s` is how long a transfer lives without a word from the consumer.
    """

    engine_id: Name
    protocol: Count
    facts: Facts
    codecs: Annotated[tuple[Name, ...], Meta(max_length=16)]
    transport_metadata: Blob
    lease_s: Seconds


class Refuse(Struct, frozen=True, array_like=True, tag="refuse"):
    """A no. An empty `transfer_id` refuses the handshake itself."""

    transfer_id: Annotated[str, Meta(max_length=256)]
    epoch: Count
    code: RefuseCode
    reason: Reason


class Register(Struct, frozen=True, array_like=True, tag="register"):
    """A consumer rank asks one producer rank for KV. No wants: nothing is needed, free the blocks."""

    transfer_id: Name
    epoch: Count
    num_prompt_tokens: Count
    prompt_digest: Name
    num_consumers: Count
    wants: Annotated[tuple[Want, ...], Meta(max_length=64)]
    credits: Annotated[tuple[Credit, ...], Meta(max_length=MAX_CREDITS)]


class Alive(Struct, frozen=True, array_like=True, tag="alive"):
    """The producer's side of the named transfers."""

    standings: Annotated[tuple[Standing, ...], Meta(max_length=4096)]


class Slab(Struct, frozen=True, array_like=True, tag="slab"):
    """Header of one slab, delivered as the notification of its write.

    `layers` is a range of positions in `wants[want].layers`. The payload in the slot is `encoded_bytes` long; decoded,
    its order is `[layer][plane][head][token][dim]` and its size at most `MAX_EXPANSION` slots.
    """

    transfer_id: Name
    epoch: Count
    seq: Count
    want: Count
    layers: Span
    tokens: Span
    credit: Credit
    codec: Name
    encoded_bytes: Count
    checksum: Annotated[int, Meta(ge=0)]


class Ack(Struct, frozen=True, array_like=True, tag="ack"):
    """Cumulative: every slab received, every credit outstanding. Safe to lose, repeat and reorder by `serial`.

    `missing` are credits whose slab is overdue or came damaged: what was written under them is written again. A slot
    asked for like this may be written twice, so it stays with its leg until Closed.
    """

    transfer_id: Name
    epoch: Count
    serial: Count
    received: Annotated[tuple[Span, ...], Meta(max_length=4096)]
    credits: Annotated[tuple[Credit, ...], Meta(max_length=MAX_CREDITS)]
    missing: Annotated[tuple[Credit, ...], Meta(max_length=MAX_CREDITS)]


class Heartbeat(Struct, frozen=True, array_like=True, tag="heartbeat"):
    """The consumer still wants these transfers, given as `(transfer_id, epoch)`."""

    transfers: Annotated[tuple[tuple[Name, Count], ...], Meta(max_length=4096)]


class Delivered(Struct, frozen=True, array_like=True, tag="delivered"):
    """Everything wanted has been scattered; the producer may free its blocks, after digesting them if `digest`."""

    transfer_id: Name
    epoch: Count
    digest: bool


class Abort(Struct, frozen=True, array_like=True, tag="abort"):
    """The sender gives the transfer up."""

    transfer_id: Name
    epoch: Count
    reason: Reason


class Closed(Struct, frozen=True, array_like=True, tag="closed"):
    """The producer's last word: no write of this transfer and epoch is in flight or will start.

    `digests`, if asked for, are of the KV in the producer's blocks, one for each layer of each want.
    """

    transfer_id: Name
    epoch: Count
    digests: Annotated[tuple[Name, ...], Meta(max_length=4096)] = ()


Message = Hello | Welcome | Refuse | Register | Alive | Slab | Ack | Heartbeat | Delivered | Abort | Closed


class Frame(Struct, frozen=True, array_like=True):
    """What crosses the wire: the sender's protocol version and process instance, then one message."""

    version: Count
    instance: Name
    message: Message


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode(instance: str, message: Message) -> bytes:
    """Encode one frame. Raises ProtocolError when it would exceed its bound."""
    frame = _encoder.encode(Frame(PROTOCOL_VERSION, instance, message))
    bound = MAX_NOTIFICATION_BYTES if isinstance(message, Slab) else MAX_FRAME_BYTES
    if len(frame) > bound:
        raise ProtocolError(f"{type(message).__name__} frame of {len(frame)} bytes exceeds the bound of {bound} bytes")
    return frame


def decode(frame: bytes) -> Frame:
    """Decode one frame. Raises ProtocolError, naming the fault: malformed, oversized or of another version."""
    if len(frame) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(frame)} bytes exceeds the bound of {MAX_FRAME_BYTES} bytes")
    try:
        decoded = _decoder.decode(frame)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"malformed frame of {len(frame)} bytes: {error}") from error
    except (RecursionError, OverflowError, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed frame of {len(frame)} bytes: {type(error).__name__}") from error
    if decoded.version != PROTOCOL_VERSION:
        raise ProtocolError(f"peer speaks protocol version {decoded.version}, this side speaks {PROTOCOL_VERSION}")
    return decoded
