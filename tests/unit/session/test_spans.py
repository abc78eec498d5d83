"""SpanSet against a set of integers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pdkv_connector.types import Span, SpanSet

SPANS = st.builds(lambda start, length: Span(start, start + length), st.integers(0, 30), st.integers(0, 10))
CHANGES = st.lists(st.tuples(st.booleans(), SPANS), max_size=20)


def changed(changes: list[tuple[bool, Span]]) -> tuple[SpanSet, set[int]]:
    spans, model = SpanSet(), set[int]()
    for adds, span in changes:
        if adds:
            spans.add(span)
            model |= set(span)
        else:
            spans.discard(span)
            model -= set(span)
    return spans, model


@given(CHANGES)
def test_holds_what_a_set_holds(changes: list[tuple[bool, Span]]) -> None:
    spans, model = changed(changes)
    assert [index for span in spans for index in span] == sorted(model)
    assert len(spans) == len(model)
    assert bool(spans) == bool(model)
    assert {index for index in range(45) if index in spans} == model


@given(CHANGES)
def test_spans_are_sorted_apart_and_not_empty(changes: list[tuple[bool, Span]]) -> None:
    spans, _ = changed(changes)
    ranges = spans.spans()
    assert all(ranges)
    assert all(left.stop < right.start for left, right in pairwise(ranges))


@given(CHANGES, SPANS)
def test_covers_and_overlaps(changes: list[tuple[bool, Span]], probe: Span) -> None:
    spans, model = changed(changes)
    assert spans.covers(probe) == (set(probe) <= model)
    assert spans.overlaps(probe) == bool(set(probe) & model)


@given(SPANS, SPANS)
def test_intersection_is_that_of_sets(left: Span, right: Span) -> None:
    assert set(left & right) == set(left) & set(right)
    assert left.covers(right) == (set(right) <= set(left))


def test_order_of_addition_does_not_matter() -> None:
    parts = [Span(4, 6), Span(0, 2), Span(2, 4)]
    assert SpanSet(parts).spans() == SpanSet(reversed(parts)).spans() == (Span(0, 6),)
    assert SpanSet(parts[:2]).spans() != (Span(0, 6),)
