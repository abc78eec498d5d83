"""Which slab goes next: computed but unsent KV of one leg, earliest tokens first, consecutive layers merged."""

from __future__ import annotations

from dataclasses import dataclass

from pdkv_connector.errors import LayoutError
from pdkv_connector.session.messages import Want
from pdkv_connector.types import Span, SpanSet


@dataclass(frozen=True, slots=True)
class Piece:
    """One slab to be: `tokens` of positions `layers` of `wants[want].layers`, `raw_bytes` of KV before encoding."""

    want: int
    layers: Span
    tokens: Span
    raw_bytes: int


class SlabQueue:
    """Turns ready KV into slabs, each wanted token of each layer exactly once. `slot_bytes` holds any one token.

    `layer_bytes[layer]` is the size in bytes of one token of one head of producer layer `layer`.
    """

    def __init__(self, wants: tuple[Want, ...], layer_bytes: tuple[int, ...], slot_bytes: int) -> None:
        self._wants = wants
        self.slot_bytes = slot_bytes
        self._token_bytes = [[layer_bytes[layer] * len(want.heads) for layer in want.layers] for want in wants]
        self._unsent = [[SpanSet([want.tokens]) for _ in want.layers] for want in wants]
        self._pending = [[SpanSet() for _ in want.layers] for want in wants]
        self._positions: dict[int, list[tuple[int, int]]] = {}
        for index, want in enumerate(wants):
            for position, layer in enumerate(want.layers):
                self._positions.setdefault(layer, []).append((index, position))
        self._refuse_tiny_slots()

    def _refuse_tiny_slots(self) -> None:
        largest = max((size for sizes in self._token_bytes for size in sizes), default=0)
        if largest > self.slot_bytes:
            raise LayoutError(
                f"one token of one layer is {largest} bytes but a slot holds {self.slot_bytes}: raise slot_bytes"
            )

    def ready(self, layer: int, tokens: Span) -> None:
        """KV of `tokens` of producer layer `layer` may be read from now on."""
        for want, position in self._positions.get(layer, ()):
            for unsent in self._unsent[want][position]:
                self._pending[want][position].add(unsent & tokens)

    def revoke(self) -> None:
        """Nothing queued may be read until it is ready again."""
        self._pending = [[SpanSet() for _ in want.layers] for want in self._wants]

    def __bool__(self) -> bool:
        return any(pending for layers in self._pending for pending in layers)

    @property
    def waiting_bytes(self) -> int:
        """KV that is ready and unsent."""
        return sum(
            len(pending) * size
            for layers, sizes in zip(self._pending, self._token_bytes, strict=True)
            for pending, size in zip(layers, sizes, strict=True)
            if pending
        )

    def pop(self, max_bytes: int) -> Piece | None:
        """Take the next slab, of at most `max_bytes` of KV but one token at least; None when nothing is ready."""
        first = self._first()
        if first is None:
            return None
        want, position, span = first
        piece = self._widen(want, position, span, max_bytes)
        for layer in piece.layers:
            self._pending[want][layer].discard(piece.tokens)
            self._unsent[want][layer].discard(piece.tokens)
        return piece

    def give_back(self, piece: Piece) -> None:
        """A slab could not be made: its tokens are unsent. They are queued once they are said to be ready again."""
        for layer in piece.layers:
            self._unsent[piece.want][layer].add(piece.tokens)

    def _first(self) -> tuple[int, int, Span] | None:
        candidates = (
            (pending.spans()[0].start, want, position, pending.spans()[0])
            for want, layers in enumerate(self._pending)
            for position, pending in enumerate(layers)
            if pending
        )
        best = min(candidates, default=None)
        return best and best[1:]

    def _widen(self, want: int, position: int, span: Span, max_bytes: int) -> Piece:
        sizes = self._token_bytes[want]
        fits = max(1, max_bytes // max(1, sizes[position]))
        tokens = Span(span.start, min(span.stop, span.start + fits))
        stop, used = position + 1, sizes[position] * len(tokens)
        while (
            stop < len(sizes)
            and used + sizes[stop] * len(tokens) <= max_bytes
            and self._pending[want][stop].covers(tokens)
        ):
            used += sizes[stop] * len(tokens)
            stop += 1
        return Piece(want, Span(position, stop), tokens, used)
