"""Ids, half-open ranges and credits: the nouns every room shares.

Wire-visible nouns are frozen `msgspec` structs encoded as arrays, so that messages stay small and typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

TransferId = str
"""Names one request's KV transfer on both engines; chosen by the router, never derived from a request id."""

PeerId = str
"""Names a control connection inside one process; it means nothing to any other process."""


Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
"""A position; what a peer sends outside these bounds is refused when it is decoded."""


class Span(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Half-open range `[start, stop)` of tokens, layers, heads or sequence numbers."""

    start: Index
    stop: Index

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    def __bool__(self) -> bool:
        return self.stop > self.start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))

    def __contains__(self, item: int) -> bool:
        return self.start <= item < self.stop

    def __and__(self, other: Span) -> Span:
        start = max(self.start, other.start)
        return Span(start, max(start, min(self.stop, other.stop)))

    def covers(self, other: Span) -> bool:
        """True when every index of `other` is in this range; an empty range is covered by anything."""
        return not other or (self.start <= other.start and other.stop <= self.stop)


class Credit(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Permission to write one slab into receive slot `slot`; `serial` makes every grant of a slot distinct."""

    slot: Index
    serial: Index


class SpanSet:
    """Sorted set of disjoint, non-adjacent ranges; used for token coverage and for acknowledged slabs."""

    __slots__ = ("_spans",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: list[Span] = []
        for span in spans:
            self.add(span)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __bool__(self) -> bool:
        return bool(self._spans)

    def __len__(self) -> int:
        """Number of indices in the set (not of ranges)."""
        return sum(len(span) for span in self._spans)

    def __contains__(self, item: int) -> bool:
        return any(item in span for span in self._spans)

    def add(self, span: Span) -> None:
        """Unite with `span`."""
        if not span:
            return
        start, stop = span.start, span.stop
        apart: list[Span] = []
        for other in self._spans:
            if other.stop < start or stop < other.start:
                apart.append(other)
            else:
                start, stop = min(start, other.start), max(stop, other.stop)
        apart.append(Span(start, stop))
        self._spans = sorted(apart)

    def discard(self, span: Span) -> None:
        """Remove every index of `span`."""
        rest = (
            part
            for other in self._spans
            for part in (
                Span(other.start, min(other.stop, span.start)),
                Span(max(other.start, span.stop), other.stop),
            )
        )
        self._spans = [part for part in rest if part] if span else self._spans

    def covers(self, span: Span) -> bool:
        """True when every index of `span` is in the set."""
        return not span or any(other.covers(span) for other in self._spans)

    def overlaps(self, span: Span) -> bool:
        """True when some index of `span` is in the set."""
        return any(other & span for other in self._spans)

    def spans(self) -> tuple[Span, ...]:
        """The ranges in ascending order."""
        return tuple(self._spans)
