"""Cutting KV into slabs that fit a slot."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.slabs import plan_slabs
from pdkv_connector.types import Span


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=12),
    st.integers(0, 11),
    st.integers(0, 100),
    st.integers(1, 60),
    st.integers(64, 4096),
)
def test_slabs_cover_everything_once_and_fit(
    weights: list[int], first: int, start: int, num_tokens: int, slot_bytes: int
) -> None:
    layers, tokens = Span(min(first, len(weights) - 1), len(weights)), Span(start, start + num_tokens)
    slabs = plan_slabs(weights, layers, tokens, slot_bytes)
    cells = Counter((layer, token) for some, part in slabs for layer in some for token in part)
    assert cells == Counter((layer, token) for layer in layers for token in tokens)
    assert all(sum(weights[layer] for layer in some) * len(part) <= slot_bytes for some, part in slabs)


@given(st.lists(st.integers(1, 64), min_size=2, max_size=12), st.integers(1, 60), st.integers(64, 4096))
def test_no_slab_had_room_for_the_next_layer(weights: list[int], num_tokens: int, slot_bytes: int) -> None:
    slabs = plan_slabs(weights, Span(0, len(weights)), Span(0, num_tokens), slot_bytes)
    whole = [some for some, part in slabs if len(part) == num_tokens]
    for one, other in pairwise(whole):
        together = sum(weights[layer] for layer in (*one, other.start)) * num_tokens
        assert together > slot_bytes or one.stop != other.start


def test_examples() -> None:
    assert plan_slabs([4] * 6, Span(0, 6), Span(0, 10), 80) == [
        (Span(0, 2), Span(0, 10)),
        (Span(2, 4), Span(0, 10)),
        (Span(4, 6), Span(0, 10)),
    ]
    assert plan_slabs([4, 4], Span(1, 2), Span(5, 15), 16) == [
        (Span(1, 2), Span(5, 8)),
        (Span(1, 2), Span(8, 11)),
        (Span(1, 2), Span(11, 15)),
    ]
    assert plan_slabs([4], Span(0, 1), Span(7, 7), 16) == []


def test_a_token_larger_than_a_slot_is_named() -> None:
    with pytest.raises(LayoutError, match="layer 1 takes 65 bytes, a slot holds 64; raise slot_bytes to 65"):
        plan_slabs([64, 65], Span(0, 2), Span(0, 1), 64)
