"""One transfer from one producer rank: which slabs came, which slots are lent, what is still missing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pdkv_connector.session.actions import LegKey
from pdkv_connector.session.compatibility import WantedPart, token_head_bytes
from pdkv_connector.session.messages import MAX_EXPANSION, Ack, LayerFact, ProducerState, Register, Slab, Standing
from pdkv_connector.session.ring import ReceiveRing
from pdkv_connector.types import Credit, Span, SpanSet

MAX_DAMAGED = 5


@dataclass(frozen=True, slots=True)
class LegPlan:
    """What a leg is for: the producer's endpoint, the KV heads it supplies, how many consumers ask that rank."""

    endpoint: str
    global_heads: Span
    num_consumers: int


class ConsumerLeg:
    """Bookkeeping of one leg; it never lets a slab touch tokens twice."""

    def __init__(self, key: LegKey, plan: LegPlan, now: float) -> None:
        self.key = key
        self.plan = plan
        self.parts: tuple[WantedPart, ...] = ()
        self.register: Register | None = None
        self.registered_at = float("-inf")
        self.acknowledged = False
        self.complete = False
        self.closed = False
        self.said_at = float("-inf")
        self.ended_at = float("inf")
        self.lease_s = 0.0
        self.num_layers = 1
        self.overdue = False
        self.progress_at = now
        self.state = ProducerState.UNKNOWN
        self.num_tokens_ready = 0
        self.num_damaged = 0
        self.digests: tuple[str, ...] = ()
        self.lent: dict[int, Credit] = {}
        self.borrowed_at = -1
        self.scattering: dict[int, Slab] = {}
        self.received = SpanSet()
        self._spoiled: set[Credit] = set()
        self._doubtful: set[int] = set()
        self._ack_serial = 0
        self._missing: list[list[SpanSet]] = []

    @property
    def streaming(self) -> bool:
        """True when slabs come or are about to."""
        return self.acknowledged and self.state is ProducerState.STREAMING

    @property
    def over(self) -> bool:
        """True once this side has said its last word: Delivered or Abort."""
        return self.ended_at < float("inf")

    @property
    def whole(self) -> bool:
        """True when nothing wanted is missing; before it is known what is wanted, all is."""
        return self.register is not None and not any(missing for layers in self._missing for missing in layers)

    @property
    def caught_up(self) -> bool:
        """True when nothing is missing of the prefix that the producer is known to have computed in all layers."""
        prefix = self.num_tokens_ready // self.num_layers
        return all(missing.spans()[0].start >= prefix for layers in self._missing for missing in layers if missing)

    def prepare(self, parts: tuple[WantedPart, ...]) -> None:
        """The producer's layers are known: fix what is wanted of it."""
        self.parts = parts
        self._missing = [[SpanSet([part.want.tokens]) for _ in part.want.layers] for part in parts]

    def borrow(self, ring: ReceiveRing) -> bool:
        """Lend this leg one more slot; False when the ring has none."""
        credit = ring.lend()
        if credit is not None:
            self.lent[credit.slot] = credit
            self.borrowed_at = credit.serial
        return credit is not None

    def give_back(self, ring: ReceiveRing) -> None:
        """Return every slot: the producer can write no more. A slot being scattered comes back when that is done."""
        read = {slab.credit.slot for slab in self.scattering.values()}
        for slot in [slot for slot in self.lent if slot not in read]:
            ring.settle(self.lent.pop(slot))

    def is_current(self, slab: Slab) -> bool:
        """False for a repeat: its credit was used, or its bytes are being scattered now."""
        return self.lent.get(slab.credit.slot) == slab.credit and slab.seq not in self.scattering

    def fault_in(self, slab: Slab, codecs: Collection[str], slot_bytes: int, layers: tuple[LayerFact, ...]) -> str:
        """Why a current slab must not be scattered; empty when it is inside what was granted."""
        if slab.want >= len(self.parts):
            return f"slab {slab.seq} names want {slab.want} of {len(self.parts)}"
        part = self.parts[slab.want]
        if not (Span(0, len(part.local_layers)).covers(slab.layers) and slab.layers):
            return f"slab {slab.seq} names layers {slab.layers} of {len(part.local_layers)}"
        if not (part.want.tokens.covers(slab.tokens) and slab.tokens):
            return f"slab {slab.seq} holds tokens {slab.tokens} outside {part.want.tokens}"
        if not all(self._missing[slab.want][layer].covers(slab.tokens) for layer in slab.layers):
            return f"slab {slab.seq} repeats tokens {slab.tokens} that came before"
        raw_bytes = len(slab.tokens) * len(part.local_heads) * sum(
            token_head_bytes(layers[part.local_layers[layer]]) for layer in slab.layers
        )  # fmt: skip
        if slab.codec not in codecs:
            return f"slab {slab.seq} has codec {slab.codec!r}; agreed were {', '.join(codecs) or 'none'}"
        if not 0 < slab.encoded_bytes <= min(slot_bytes, raw_bytes) or raw_bytes > MAX_EXPANSION * slot_bytes:
            return f"slab {slab.seq} has {slab.encoded_bytes} bytes for {raw_bytes} of KV, a slot has {slot_bytes}"
        return ""

    def scattered(self, seq: int, ring: ReceiveRing, now: float) -> None:
        """A slab is in the engine's blocks: its tokens are no longer missing, its slot is free."""
        slab = self.scattering.pop(seq)
        for layer in slab.layers:
            self._missing[slab.want][layer].discard(slab.tokens)
        self.received.add(Span(seq, seq + 1))
        self._free(slab.credit.slot, ring)
        self.progress_at = now

    def _free(self, slot: int, ring: ReceiveRing) -> None:
        """A slot that was asked for again may be written once more: only this leg's producer can tell when."""
        credit = self.lent.pop(slot)
        if slot in self._doubtful and not self.closed:
            self.lent[slot] = ring.renew(credit)
        else:
            ring.settle(credit)

    def damaged(self, seq: int, ring: ReceiveRing) -> bool:
        """A slab did not survive the wire; True when that happened too often. It is asked for again by the next Ack."""
        slab = self.scattering.pop(seq)
        self.num_damaged += 1
        self._spoiled.add(slab.credit)
        if self.closed:
            self._free(slab.credit.slot, ring)
        return self.num_damaged > MAX_DAMAGED

    def stand(self, standing: Standing, now: float) -> None:
        """Note where the producer says this transfer is; news is progress."""
        if (standing.state, standing.num_tokens_ready) != (self.state, self.num_tokens_ready):
            self.state, self.num_tokens_ready, self.progress_at = standing.state, standing.num_tokens_ready, now

    def ack(self) -> Ack:
        """All that came and all that is lent; asks again for what was damaged and, when `overdue`, for all the rest."""
        self._ack_serial += 1
        lent = tuple(sorted(self.lent.values(), key=lambda credit: credit.serial))
        here = {slab.credit for slab in self.scattering.values()}
        missing = tuple(credit for credit in lent if credit not in here and (self.overdue or credit in self._spoiled))
        self.overdue = False
        self._doubtful.update(credit.slot for credit in missing)
        return Ack(self.key.transfer_id, self.key.epoch, self._ack_serial, self.received.spans(), lent, missing)
