"""Slabs cover each wanted token of each layer exactly once, whatever becomes ready in whatever order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdkv_connector.errors import LayoutError
from pdkv_connector.session.messages import Want
from pdkv_connector.session.slab_queue import Piece, SlabQueue
from pdkv_connector.types import Span

LAYER_BYTES = (4, 8, 4, 4)
NUM_TOKENS = 24
HEADS = Span(0, 2)

TOKENS = st.builds(
    lambda start, length: Span(start, min(NUM_TOKENS, start + length)), st.integers(0, 23), st.integers(0, 24)
)
LAYERS = st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True).map(lambda layers: tuple(sorted(layers)))
SLOT_BYTES = st.sampled_from((16, 32, 100, 4096))
READY = st.lists(st.tuples(st.integers(0, 3), TOKENS), max_size=12)


def drain(queue: SlabQueue) -> Iterator[Piece]:
    while piece := queue.pop(queue.slot_bytes):
        yield piece


def elements(wants: tuple[Want, ...], pieces: list[Piece]) -> Counter[tuple[int, int, int]]:
    """How often each (want, layer, token) is in a slab."""
    return Counter(
        (piece.want, wants[piece.want].layers[position], token)
        for piece in pieces
        for position in piece.layers
        for token in piece.tokens
    )


@given(st.lists(st.builds(Want, LAYERS, TOKENS, st.just(HEADS)), min_size=1, max_size=3).map(tuple), SLOT_BYTES, READY)
def test_each_ready_and_wanted_token_goes_once(
    wants: tuple[Want, ...], slot_bytes: int, ready: list[tuple[int, Span]]
) -> None:
    queue = SlabQueue(wants, LAYER_BYTES, slot_bytes)
    pieces: list[Piece] = []
    for layer, tokens in ready:
        queue.ready(layer, tokens)
        pieces += drain(queue)
    expected = {
        (index, layer, token)
        for index, want in enumerate(wants)
        for layer, tokens in ready
        for token in tokens
        if layer in want.layers and token in want.tokens
    }
    assert elements(wants, pieces) == Counter(expected)
    assert not queue


@given(SLOT_BYTES, READY)
def test_no_slab_exceeds_a_slot_and_none_is_empty(slot_bytes: int, ready: list[tuple[int, Span]]) -> None:
    want = Want((0, 1, 2, 3), Span(0, NUM_TOKENS), HEADS)
    queue = SlabQueue((want,), LAYER_BYTES, slot_bytes)
    for layer, tokens in ready:
        queue.ready(layer, tokens)
    for piece in drain(queue):
        num_bytes = sum(LAYER_BYTES[layer] for layer in piece.layers) * len(HEADS) * len(piece.tokens)
        assert 0 < num_bytes == piece.raw_bytes <= slot_bytes


def test_earliest_tokens_go_first() -> None:
    queue = SlabQueue((Want((0, 1), Span(0, NUM_TOKENS), HEADS),), LAYER_BYTES, 16)
    queue.ready(0, Span(8, 24))
    queue.ready(1, Span(0, 24))
    starts = [piece.tokens.start for piece in drain(queue)]
    assert starts == sorted(starts)
    assert starts[0] == 0


def test_consecutive_layers_share_a_slab_while_they_fit() -> None:
    queue = SlabQueue((Want((0, 1, 2, 3), Span(0, 4), HEADS),), LAYER_BYTES, 4 * 2 * (4 + 8 + 4))
    for layer in range(4):
        queue.ready(layer, Span(0, 4))
    assert list(drain(queue)) == [Piece(0, Span(0, 3), Span(0, 4), 128), Piece(0, Span(3, 4), Span(0, 4), 32)]


def test_revoked_tokens_wait_until_they_are_ready_again() -> None:
    queue = SlabQueue((Want((0,), Span(0, 8), HEADS),), LAYER_BYTES, 32)
    queue.ready(0, Span(0, 8))
    sent = queue.pop(32)
    queue.revoke()
    assert queue.pop(32) is None
    queue.ready(0, Span(0, 8))
    assert sent == Piece(0, Span(0, 1), Span(0, 4), 32)
    assert list(drain(queue)) == [Piece(0, Span(0, 1), Span(4, 8), 32)]


def test_a_slot_smaller_than_one_token_is_refused() -> None:
    with pytest.raises(LayoutError, match="16 bytes but a slot holds 15: raise slot_bytes"):
        SlabQueue((Want((1,), Span(0, 8), HEADS),), LAYER_BYTES, 15)


@given(SLOT_BYTES, READY, st.lists(st.booleans(), max_size=12), st.sampled_from((1, 20, 64, 400)))
def test_what_is_given_back_goes_again_and_only_once(
    slot_bytes: int, ready: list[tuple[int, Span]], fits: list[bool], max_bytes: int
) -> None:
    want = Want((0, 1, 2, 3), Span(0, NUM_TOKENS), HEADS)
    queue = SlabQueue((want,), LAYER_BYTES, slot_bytes)
    pieces = []
    for layer, tokens in ready:
        queue.ready(layer, tokens)
    while piece := queue.pop(max_bytes):
        if not fits or fits.pop():
            pieces.append(piece)
            continue
        before = queue.waiting_bytes
        queue.give_back(piece)
        assert queue.waiting_bytes == before, "it is not read before it is said to be ready"
        for layer, tokens in ready:
            queue.ready(layer, tokens)
        assert queue.waiting_bytes == before + piece.raw_bytes
    expected = {(0, layer, token) for layer, tokens in ready for token in tokens}
    assert elements((want,), pieces) == Counter(expected)


def test_a_slab_holds_one_token_at_least() -> None:
    queue = SlabQueue((Want((0, 1), Span(0, 8), HEADS),), LAYER_BYTES, 32)
    queue.ready(0, Span(0, 8))
    assert queue.pop(1) == Piece(0, Span(0, 1), Span(0, 1), 8)
    assert queue.waiting_bytes == 7 * 8
