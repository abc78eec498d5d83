"""Tokens the decode engine needs, against the attention mask itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdkv_connector.layout.window import needed_tokens
from pdkv_connector.types import Span


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 400))
def test_matches_the_mask(stop: int, num_local_hit: int, window: int) -> None:
    """Token `stop` and those after it are computed here; whatever they see and the cache lacks must come."""
    seen = {key for query in range(stop, stop + 3) for key in range(stop) if not window or query - key < window}
    wanted = needed_tokens(stop, num_local_hit, window)
    assert set(wanted) == {key for key in seen if key >= num_local_hit}
    assert wanted.stop == stop


def test_examples() -> None:
    assert needed_tokens(100, 0, 0) == Span(0, 100)
    assert needed_tokens(100, 32, 0) == Span(32, 100)
    assert needed_tokens(100, 0, 16) == Span(85, 100)
    assert needed_tokens(100, 96, 16) == Span(96, 100)
    assert needed_tokens(8, 0, 16) == Span(0, 8)
    assert not needed_tokens(100, 0, 1)
    assert not needed_tokens(100, 128, 0)
