"""One transfer towards one consumer rank: credits in, slabs out, acknowledgements back."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from pdkv_connector.session.actions import Action, Gather, LegKey, SlabKey, Write
from pdkv_connector.session.codec_advisor import CodecAdvisor, Load
from pdkv_connector.session.messages import MAX_CREDITS, MAX_EXPANSION, Ack, Register, RingSpec, Slab
from pdkv_connector.session.slab_queue import Piece, SlabQueue
from pdkv_connector.types import Credit

MAX_ATTEMPTS = 5


class Progress(enum.StrEnum):
    """Where one slab is."""

    GATHERING = "gathering"
    WRITING = "writing"
    WRITTEN = "written"


@dataclass(slots=True)
class Outgoing:
    """One slab between its Gather and its acknowledgement; it owns a send slot all that time."""

    piece: Piece
    credit: Credit
    send_slot: int
    codec: str
    progress: Progress = Progress.GATHERING
    header: Slab | None = None
    written_at: float = 0.0
    attempts: int = 1
    received: bool = False


class ProducerLeg:
    """Slab traffic of one leg. Never has two writes of its own in flight towards one receive slot.

    `decoders` are the codecs agreed with the peer and the bytes of KV per second it decodes with each.
    """

    def __init__(
        self, key: LegKey, register: Register, queue: SlabQueue, ring: RingSpec, decoders: Mapping[str, int]
    ) -> None:
        self.key = key
        self.register = register
        self.queue = queue
        self.ring = ring
        self.decoders = decoders
        self.over = False
        self.digesting = False
        self.digests: tuple[str, ...] = ()
        self.failure = ""
        self.heard_at = 0.0
        self.moved_at = 0.0
        self.outgoing: dict[int, Outgoing] = {}
        self._credits: deque[Credit] = deque()
        self._newest_serial = -1
        self._ack_serial = -1
        self._next_seq = 0
        self._spare_seqs: list[int] = []
        self._cautious = False
        self._take_credits(register.credits)

    def _take_credits(self, credits: tuple[Credit, ...]) -> None:
        """Only serials above all seen are new; the rest were used already, or are in use. One a slot is kept."""
        fresh = sorted((c for c in credits if c.serial > self._newest_serial), key=lambda credit: credit.serial)
        if not fresh:
            return
        self._newest_serial = fresh[-1].serial
        kept = {credit.slot: credit for credit in (*self._credits, *fresh) if credit.slot < self.ring.num_slots}
        self._credits = deque(sorted(kept.values(), key=lambda credit: credit.serial)[-MAX_CREDITS:])

    @property
    def busy(self) -> bool:
        """True while something may read the engine's blocks or a write may touch the peer's ring."""
        return self.digesting or any(slab.progress is not Progress.WRITTEN for slab in self.outgoing.values())

    @property
    def waiting_for_credit(self) -> bool:
        """True when the consumer has yet to lend a slot."""
        return not (self.over or self._credits or self.outgoing)

    def _free_credit(self) -> Credit | None:
        """A credit whose slot no write of ours still touches: a repeated write may outlive its acknowledgement."""
        touched = {slab.credit.slot for slab in self.outgoing.values() if slab.progress is not Progress.WRITTEN}
        return next((credit for credit in self._credits if credit.slot not in touched), None)

    def start_slab(self, send_slot: int, advisor: CodecAdvisor, now: float) -> Action | None:
        """Take the next slab and a credit, if there is both; the send slot belongs to the slab from here on."""
        credit = None if self.over or not self.queue else self._free_credit()
        advice = advisor.advise(self.key, self.decoders, self._load(), now) if credit else None
        if credit is None or advice is None:
            return None
        slot_bytes = self.queue.slot_bytes
        piece = self.queue.pop(slot_bytes if self._cautious else min(advice.raw_bytes, MAX_EXPANSION * slot_bytes))
        assert piece is not None
        self._cautious = False
        self.moved_at = now
        self._credits.remove(credit)
        seq = self._spare_seqs.pop() if self._spare_seqs else self._next_seq
        self._next_seq = max(self._next_seq, seq + 1)
        self.outgoing[seq] = Outgoing(piece, credit, send_slot, advice.codec)
        want = self.register.wants[piece.want]
        layers = tuple(want.layers[position] for position in piece.layers)
        return Gather(SlabKey(self.key, seq), layers, piece.tokens, want.heads, send_slot, advice.codec, slot_bytes)

    def _load(self) -> Load:
        moving = (slab.piece.raw_bytes for slab in self.outgoing.values() if slab.progress is not Progress.WRITTEN)
        return Load(self.queue.slot_bytes, self.queue.waiting_bytes, sum(moving))

    def take_back(self, seq: int) -> Outgoing:
        """The payload does not fit a slot. The piece is unsent, credit and number are free; what was the slab's slot
        is the caller's. The next slab holds no more KV than a slot, which always fits.
        """
        slab = self.outgoing.pop(seq)
        self._credits.appendleft(slab.credit)
        self._spare_seqs.append(seq)
        self.queue.give_back(slab.piece)
        self._cautious = True
        return slab

    def gathered(self, seq: int, encoded_bytes: int, checksum: int) -> Action | None:
        """The payload lies in the send slot; write it unless the leg ended meanwhile."""
        slab = self.outgoing[seq]
        if self.over:
            slab.progress = Progress.WRITTEN
            return None
        piece = slab.piece
        slab.header = Slab(
            self.key.transfer_id, self.key.epoch, seq, piece.want, piece.layers, piece.tokens, slab.credit,
            slab.codec, encoded_bytes, checksum,
        )  # fmt: skip
        return self._write(seq, slab)

    def _write(self, seq: int, slab: Outgoing) -> Action:
        assert slab.header is not None
        slab.progress = Progress.WRITING
        raw_bytes, attempt = slab.piece.raw_bytes, slab.attempts
        return Write(SlabKey(self.key, seq), slab.send_slot, self.ring, slab.header, raw_bytes, attempt)

    def written(self, seq: int, now: float) -> list[int]:
        """The write is complete at the target. Returns the send slots that came free."""
        if slab := self.outgoing.get(seq):
            slab.progress, slab.written_at = Progress.WRITTEN, now
        return self.settle()

    def acknowledge(self, ack: Ack, now: float, resend_s: float) -> tuple[list[int], list[Action]]:
        """Returns the send slots that came free and the writes to repeat."""
        if ack.serial <= self._ack_serial:
            return [], []
        self._ack_serial = ack.serial
        self._take_credits(ack.credits)
        for seq, slab in self.outgoing.items():
            slab.received = slab.received or any(seq in span for span in ack.received)
        return self.settle(), self._repeat_lost(set(ack.missing), now, resend_s)

    def settle(self) -> list[int]:
        """Drop slabs that nobody will ask for again and no write of ours touches; returns their send slots."""
        settled = [
            seq
            for seq, slab in self.outgoing.items()
            if slab.progress is Progress.WRITTEN and (self.over or slab.received)
        ]
        return [self.outgoing.pop(seq).send_slot for seq in settled]

    def _repeat_lost(self, missing: set[Credit], now: float, resend_s: float) -> list[Action]:
        repeats: list[Action] = []
        for seq, slab in self.outgoing.items():
            if slab.progress is not Progress.WRITTEN or slab.credit not in missing:
                continue
            if now - slab.written_at < resend_s:
                continue
            slab.attempts += 1
            if slab.attempts > MAX_ATTEMPTS:
                self.failure = f"slab {seq} was written {MAX_ATTEMPTS} times and never acknowledged"
                break
            repeats.append(self._write(seq, slab))
        return repeats

    def end(self) -> list[int]:
        """Stop sending; returns the send slots that are free at once. Busy ones come free by `settle`."""
        self.over = True
        self.queue.revoke()
        return self.settle()
