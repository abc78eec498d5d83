"""One transfer towards one consumer rank: credits in, slabs out, acknowledgements back."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from pdkv_connector.session.actions import Action, Gather, LegKey, SlabKey, Write
from pdkv_connector.session.messages import Ack, Register, RingSpec, Slab
from pdkv_connector.session.slab_queue import Piece, SlabQueue
from pdkv_connector.types import Credit, SpanSet

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
    progress: Progress = Progress.GATHERING
    header: Slab | None = None
    written_at: float = 0.0
    attempts: int = 1


class ProducerLeg:
    """Slab traffic of one leg. Never has two writes of its own in flight towards one receive slot."""

    def __init__(self, key: LegKey, register: Register, queue: SlabQueue, ring: RingSpec, codec: str) -> None:
        self.key = key
        self.register = register
        self.queue = queue
        self.ring = ring
        self.codec = codec
        self.over = False
        self.digesting = False
        self.digests: tuple[str, ...] = ()
        self.failure = ""
        self.heard_at = 0.0
        self.outgoing: dict[int, Outgoing] = {}
        self._credits: deque[Credit] = deque()
        self._received = SpanSet()
        self._newest_serial = -1
        self._ack_serial = -1
        self._next_seq = 0
        self._take_credits(register.credits)

    def _take_credits(self, credits: tuple[Credit, ...]) -> None:
        """Only serials above all seen are new; the rest were used already, or are in use."""
        fresh = sorted((c for c in credits if c.serial > self._newest_serial), key=lambda credit: credit.serial)
        valid = [credit for credit in fresh if credit.slot < self.ring.num_slots]
        self._credits.extend(valid)
        if fresh:
            self._newest_serial = fresh[-1].serial

    @property
    def busy(self) -> bool:
        """True while something may read the engine's blocks or a write may touch the peer's ring."""
        return self.digesting or any(slab.progress is not Progress.WRITTEN for slab in self.outgoing.values())

    @property
    def waiting_for_credit(self) -> bool:
        """True when the consumer has yet to lend a slot."""
        return not (self.over or self._credits or self.outgoing)

    @property
    def can_send(self) -> bool:
        """True when a slab could start, given a send slot."""
        return not self.over and bool(self._credits) and bool(self.queue) and self._free_credit() is not None

    def _free_credit(self) -> Credit | None:
        """A credit whose slot no write of ours still touches: a repeated write may outlive its acknowledgement."""
        touched = {slab.credit.slot for slab in self.outgoing.values() if slab.progress is not Progress.WRITTEN}
        return next((credit for credit in self._credits if credit.slot not in touched), None)

    def start_slab(self, send_slot: int) -> Action | None:
        """Take the next slab and a credit; the send slot belongs to the slab from here on."""
        credit = self._free_credit()
        piece = self.queue.pop() if self.can_send else None
        if piece is None or credit is None:
            return None
        self._credits.remove(credit)
        want = self.register.wants[piece.want]
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        self.outgoing[seq] = Outgoing(piece, credit, send_slot)
        layers = tuple(want.layers[position] for position in piece.layers)
        return Gather(SlabKey(self.key, seq), layers, piece.tokens, want.heads, send_slot, self.codec)

    def gathered(self, seq: int, encoded_bytes: int, checksum: int) -> Action | None:
        """The payload lies in the send slot; write it unless the leg ended meanwhile."""
        slab = self.outgoing[seq]
        if self.over:
            slab.progress = Progress.WRITTEN
            return None
        piece = slab.piece
        slab.header = Slab(
            self.key.transfer_id, self.key.epoch, seq, piece.want, piece.layers, piece.tokens, slab.credit,
            self.codec, encoded_bytes, checksum,
        )  # fmt: skip
        return self._write(seq, slab)

    def _write(self, seq: int, slab: Outgoing) -> Action:
        assert slab.header is not None
        slab.progress = Progress.WRITING
        return Write(SlabKey(self.key, seq), slab.send_slot, self.ring, slab.header)

    def written(self, seq: int, now: float) -> list[int]:
        """The write is complete at the target. Returns the send slots that came free."""
        if slab := self.outgoing.get(seq):
            slab.progress, slab.written_at = Progress.WRITTEN, now
        return self.reap() if self.over else self._settle()

    def acknowledge(self, ack: Ack, now: float, resend_s: float) -> tuple[list[int], list[Action]]:
        """Returns the send slots that came free and the writes to repeat."""
        if ack.serial <= self._ack_serial:
            return [], []
        self._ack_serial = ack.serial
        self._take_credits(ack.credits)
        for span in ack.received:
            self._received.add(span)
        return self._settle(), self._repeat_lost(set(ack.missing), now, resend_s)

    def _settle(self) -> list[int]:
        """Drop slabs that were received and that no write of ours touches any more."""
        settled = [
            seq for seq, slab in self.outgoing.items() if slab.progress is Progress.WRITTEN and seq in self._received
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
        """Stop sending; returns the send slots that are free at once. Busy ones come free by `reap`."""
        self.over = True
        self.queue.revoke()
        return self.reap()

    def reap(self) -> list[int]:
        """Send slots of an ended leg that nothing touches any more."""
        done = [seq for seq, slab in self.outgoing.items() if slab.progress is Progress.WRITTEN]
        return [self.outgoing.pop(seq).send_slot for seq in done]
