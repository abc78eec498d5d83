"""Matching layers by name across pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pdkv_connector.errors import LayoutError


class StageFeed(NamedTuple):
    """Layers that one producer stage holds for a consumer: equal positions name the same layer."""

    producer_pp_rank: int
    producer_layers: tuple[int, ...]
    consumer_layers: tuple[int, ...]


def layer_indices(names: Sequence[str], wanted: Sequence[str]) -> tuple[int, ...]:
    """Index in `names` of each of `wanted`, in that order. Raises LayoutError for a layer that is not there."""
    index_of = {name: index for index, name in enumerate(names)}
    if missing := [name for name in wanted if name not in index_of]:
        raise LayoutError(f"layer {missing[0]} is not among the {len(names)} layers held here ({len(missing)} missing)")
    return tuple(index_of[name] for name in wanted)


def match_stage(pp_rank: int, producer_names: Sequence[str], consumer_names: Sequence[str]) -> StageFeed | None:
    """The layers that a consumer shares with one producer stage, in the producer's order; None when it shares none."""
    wanted = set(consumer_names)
    shared = [name for name in producer_names if name in wanted]
    if not shared:
        return None
    return StageFeed(pp_rank, layer_indices(producer_names, shared), layer_indices(consumer_names, shared))


def match_stages(producer_stages: Sequence[Sequence[str]], consumer_names: Sequence[str]) -> tuple[StageFeed, ...]:
    """Stages that feed a consumer. Raises LayoutError unless each of its layers is in exactly one stage."""
    for name in consumer_names:
        if (count := sum(name in stage for stage in producer_stages)) != 1:
            raise LayoutError(f"layer {name} is held by {count} producer stages; it must be held by exactly one")
    matched = (match_stage(rank, names, consumer_names) for rank, names in enumerate(producer_stages))
    return tuple(feed for feed in matched if feed)
