"""Which producer ranks feed which consumer ranks, over every ratio that vLLM allows."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.topology import Feed, feeds, kv_heads_of, num_consumers, releases
from pdkv_connector.types import Span

HEADS = st.sampled_from((1, 2, 3, 4, 6, 8, 12, 16, 128))
SIZES = st.sampled_from((1, 2, 3, 4, 6, 8, 12, 16, 24, 32))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, int, int]:
    """`(num_kv_heads, producer_tp_size, consumer_tp_size)` that divide."""
    heads, producers, consumers = draw(HEADS), draw(SIZES), draw(SIZES)
    assume(all(max(heads, size) % min(heads, size) == 0 for size in (producers, consumers)))
    return heads, producers, consumers


@given(pairs())
def test_every_head_of_a_consumer_comes_once_from_a_rank_that_holds_it(pair: tuple[int, int, int]) -> None:
    heads, producers, consumers = pair
    for rank in range(consumers):
        found = feeds(heads, producers, rank, consumers)
        fed = [head for feed in found for head in feed.global_heads]
        assert fed == list(kv_heads_of(heads, rank, consumers))
        assert all(kv_heads_of(heads, feed.producer_rank, producers).covers(feed.global_heads) for feed in found)


@given(pairs())
def test_every_producer_rank_hears_from_exactly_the_consumers_it_expects(pair: tuple[int, int, int]) -> None:
    heads, producers, consumers = pair
    heard: Counter[int] = Counter()
    for rank in range(consumers):
        told = {feed.producer_rank for feed in feeds(heads, producers, rank, consumers)}
        freed = releases(heads, producers, rank, consumers)
        assert not told & set(freed)
        heard.update([*told, *freed])
    assert heard == {rank: num_consumers(heads, rank, producers, consumers) for rank in range(producers)}


@given(pairs())
def test_replicas_share_the_load(pair: tuple[int, int, int]) -> None:
    heads, producers, consumers = pair
    served: dict[Span, list[int]] = {}
    for rank in range(producers):
        count = sum(
            feed.producer_rank == rank for c in range(consumers) for feed in feeds(heads, producers, c, consumers)
        )
        served.setdefault(kv_heads_of(heads, rank, producers), []).append(count)
    assert all(max(counts) - min(counts) <= 1 for counts in served.values())


@given(HEADS, SIZES)
def test_equal_sizes_pair_rank_with_rank(heads: int, size: int) -> None:
    assume(max(heads, size) % min(heads, size) == 0)
    for rank in range(size):
        assert feeds(heads, size, rank, size) == (Feed(rank, kv_heads_of(heads, rank, size)),)


def test_shards_as_vllm_does() -> None:
    assert [kv_heads_of(8, rank, 4) for rank in range(4)] == [Span(0, 2), Span(2, 4), Span(4, 6), Span(6, 8)]
    assert [kv_heads_of(2, rank, 4) for rank in range(4)] == [Span(0, 1), Span(0, 1), Span(1, 2), Span(1, 2)]


def test_many_to_one_and_one_to_many() -> None:
    assert feeds(8, 2, 0, 1) == (Feed(0, Span(0, 4)), Feed(1, Span(4, 8)))
    assert feeds(8, 1, 1, 2) == (Feed(0, Span(4, 8)),)
    assert feeds(12, 4, 1, 3) == (Feed(1, Span(4, 6)), Feed(2, Span(6, 8)))


def test_mla_ranks_that_nobody_reads_are_released_once() -> None:
    assert feeds(1, 4, 0, 2) == (Feed(0, Span(0, 1)),)
    assert feeds(1, 4, 1, 2) == (Feed(1, Span(0, 1)),)
    assert (releases(1, 4, 0, 2), releases(1, 4, 1, 2)) == ((2,), (3,))
    assert [num_consumers(1, rank, 4, 2) for rank in range(4)] == [1, 1, 1, 1]
    assert [num_consumers(1, rank, 2, 8) for rank in range(2)] == [4, 4]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kv_heads_of(8, 0, 3), "8 KV heads cannot be shared evenly by 3"),
        (lambda: kv_heads_of(8, 4, 4), "tp_rank 4 is outside a tensor-parallel size of 4"),
        (lambda: feeds(0, 1, 0, 1), "0 KV heads over 1 ranks"),
        (lambda: num_consumers(8, 9, 8, 8), "producer rank 9 is outside"),
    ],
)
def test_impossible_ratios_are_named(call: object, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        call()  # type: ignore[operator]
