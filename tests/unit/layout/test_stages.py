"""Layers matched by name across pipeline stages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.stages import StageFeed, layer_indices, match_stage, match_stages


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 6), st.randoms(use_true_random=False))
def test_every_consumer_layer_is_matched_once(num_layers: int, producers: int, consumers: int, random: object) -> None:
    names = [f"model.layers.{i}.attn" for i in range(num_layers)]
    stages = [names[num_layers * i // producers : num_layers * (i + 1) // producers] for i in range(producers)]
    for rank in range(consumers):
        wanted = names[num_layers * rank // consumers : num_layers * (rank + 1) // consumers]
        random.shuffle(wanted)  # type: ignore[attr-defined]
        found = match_stages(stages, wanted)
        matched = sorted(index for feed in found for index in feed.consumer_layers)
        assert matched == list(range(len(wanted)))
        for feed in found:
            held = [stages[feed.producer_pp_rank][index] for index in feed.producer_layers]
            assert held == [wanted[index] for index in feed.consumer_layers]


def test_wire_order_is_the_producers() -> None:
    assert match_stage(1, ["c", "d", "e"], ["e", "x", "c"]) == StageFeed(1, (0, 2), (2, 0))
    assert match_stage(0, ["a"], ["b"]) is None


def test_missing_and_doubled_layers_are_named() -> None:
    with pytest.raises(LayoutError, match="layer b is not among the 1 layers held here"):
        layer_indices(["a"], ["a", "b"])
    with pytest.raises(LayoutError, match="layer b is held by 0 producer stages"):
        match_stages([["a"], ["c"]], ["a", "b"])
    with pytest.raises(LayoutError, match="layer a is held by 2 producer stages"):
        match_stages([["a"], ["a"]], ["a"])
