"""What is remembered of one transfer on one side, and the line that it leaves in the log."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdkv_connector.types import Span, TransferId

MB = 1e6
NO_TOKENS = Span(0, 0)
PRODUCER, CONSUMER = "producer", "consumer"
_BEGUN = {PRODUCER: "queued", CONSUMER: "registered"}
_ENDED = {PRODUCER: "released", CONSUMER: "ended"}


@dataclass(slots=True)
class TransferRecord:
    """Times are of the monotonic clock, None for what has not happened; `num_repeats` counts slabs sent again."""

    side: str
    transfer_id: TransferId
    begun_at: float
    peers: list[str] = field(default_factory=list)
    first_slab_at: float | None = None
    last_slab_at: float | None = None
    prefilled_at: float | None = None
    delivered_at: float | None = None
    num_slabs: int = 0
    num_repeats: int = 0
    raw_bytes: int = 0
    encoded_bytes: int = 0
    codecs: list[str] = field(default_factory=list)
    tokens: Span = NO_TOKENS

    def meet(self, *peers: str) -> None:
        """KV goes to these, or comes from them."""
        self.peers += [peer for peer in dict.fromkeys(peers) if peer not in self.peers]

    def slab(self, tokens: Span, codec: str, raw_bytes: int, encoded_bytes: int, now: float) -> None:
        """One slab was sent for the first time, or has come whole."""
        if self.first_slab_at is None:
            self.first_slab_at, self.tokens = now, tokens
        self.last_slab_at = now
        self.tokens = Span(min(self.tokens.start, tokens.start), max(self.tokens.stop, tokens.stop))
        self.num_slabs += 1
        self.raw_bytes += raw_bytes
        self.encoded_bytes += encoded_bytes
        if codec not in self.codecs:
            self.codecs.append(codec)

    @property
    def exposed_s(self) -> float | None:
        """Producer: how long after the end of prefill the consumer had all of it; None while that is not known."""
        if self.delivered_at is None or self.prefilled_at is None:
            return None
        return max(0.0, self.delivered_at - self.prefilled_at)

    def line(self, outcome: str, reason: str, now: float) -> str:
        """All of it in one line of printable characters, whatever names peers and clients have chosen."""
        way = "to" if self.side == PRODUCER else "from"
        peers = f" {way} {_few(self.peers)}" if self.peers else ""
        reason = reason.removeprefix(f"{outcome}: ")
        why = f" ({reason})" if reason not in ("", outcome) else ""
        told = f"{self.side} transfer {self.transfer_id}{peers}: {outcome}{why} | {self._times(now)} | {self._volume()}"
        return "".join(letter if letter.isprintable() else "?" for letter in told)

    def _times(self, now: float) -> str:
        moments = [
            ("first slab", self.first_slab_at),
            ("last slab", self.last_slab_at),
            ("prefill ended", self.prefilled_at),
            ("delivered", self.delivered_at),
            (_ENDED[self.side], None if self.delivered_at == now else now),
        ]
        known = sorted(((at, name) for name, at in moments if at is not None), key=lambda moment: moment[0])
        past = [f"{name} {at - self.begun_at:.3f}" for at, name in known]
        return f"seconds since {_BEGUN[self.side]}: {', '.join(past)}"

    def _volume(self) -> str:
        if not self.num_slabs:
            return "no KV moved"
        ratio = self.raw_bytes / self.encoded_bytes if self.encoded_bytes else 1.0
        again = f", {self.num_repeats} again" if self.num_repeats else ""
        return (
            f"{len(self.tokens):,} tokens, {self.raw_bytes / MB:,.1f} MB of KV as {self.encoded_bytes / MB:,.1f} MB "
            f"({'+'.join(self.codecs)}, ratio {ratio:.2f}) in {self.num_slabs:,} slabs{again}"
        )


def _few(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
