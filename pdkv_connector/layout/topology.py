"""Which producer ranks feed which consumer rank when KV heads are sharded, or replicated, over tensor-parallel ranks.

Sharding as in vLLM's QKVParallelLinear: up to `num_kv_heads` ranks each own an equal run of heads; beyond that each
head is held by `tp_size / num_kv_heads` neighbouring ranks. An MLA latent is one head, held by every rank.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from pdkv_connector.errors import LayoutError
from pdkv_connector.types import Span


class Feed(NamedTuple):
    """`global_heads` of a consumer rank come from `producer_rank`."""

    producer_rank: int
    global_heads: Span


def kv_heads_of(num_kv_heads: int, tp_rank: int, tp_size: int) -> Span:
    """Global KV heads that `tp_rank` holds. Raises LayoutError when heads and ranks do not divide."""
    if not 0 <= tp_rank < tp_size:
        raise LayoutError(f"tp_rank {tp_rank} is outside a tensor-parallel size of {tp_size}")
    num_shards, num_replicas = _shards(num_kv_heads, tp_size)
    per_shard = num_kv_heads // num_shards
    shard = tp_rank // num_replicas
    return Span(shard * per_shard, (shard + 1) * per_shard)


@lru_cache(maxsize=4096)
def feeds(num_kv_heads: int, producer_tp_size: int, consumer_tp_rank: int, consumer_tp_size: int) -> tuple[Feed, ...]:
    """Producer ranks that feed one consumer rank: each of its heads comes from exactly one, replicas share the load."""
    wanted = kv_heads_of(num_kv_heads, consumer_tp_rank, consumer_tp_size)
    num_shards, num_replicas = _shards(num_kv_heads, producer_tp_size)
    per_shard = num_kv_heads // num_shards
    found = []
    for shard in range(wanted.start // per_shard, (wanted.stop - 1) // per_shard + 1):
        heads = Span(shard * per_shard, (shard + 1) * per_shard)
        readers = _readers(num_kv_heads, heads, consumer_tp_size)
        replica = (consumer_tp_rank - readers.start) % num_replicas
        found.append(Feed(shard * num_replicas + replica, heads & wanted))
    return tuple(found)


@lru_cache(maxsize=4096)
def releases(num_kv_heads: int, producer_tp_size: int, consumer_tp_rank: int, consumer_tp_size: int) -> tuple[int, ...]:
    """Producer ranks that nobody reads and that this consumer rank must tell to free: each is told by one rank only."""
    idle = _idle_ranks(num_kv_heads, producer_tp_size, consumer_tp_size)
    return tuple(rank for position, rank in enumerate(idle) if position % consumer_tp_size == consumer_tp_rank)


@lru_cache(maxsize=4096)
def num_consumers(num_kv_heads: int, producer_rank: int, producer_tp_size: int, consumer_tp_size: int) -> int:
    """How many consumer ranks register with `producer_rank`: its readers, or the one rank that releases it. Never 0."""
    if not 0 <= producer_rank < producer_tp_size:
        raise LayoutError(f"producer rank {producer_rank} is outside a tensor-parallel size of {producer_tp_size}")
    shares = (feeds(num_kv_heads, producer_tp_size, rank, consumer_tp_size) for rank in range(consumer_tp_size))
    readers = sum(any(feed.producer_rank == producer_rank for feed in share) for share in shares)
    return max(1, readers)


def _shards(num_kv_heads: int, tp_size: int) -> tuple[int, int]:
    """`(distinct shards, ranks that hold each)`."""
    if num_kv_heads < 1 or tp_size < 1:
        raise LayoutError(f"{num_kv_heads} KV heads over {tp_size} ranks: both must be at least 1")
    if max(num_kv_heads, tp_size) % min(num_kv_heads, tp_size):
        raise LayoutError(f"{num_kv_heads} KV heads cannot be shared evenly by {tp_size} tensor-parallel ranks")
    return min(num_kv_heads, tp_size), max(1, tp_size // num_kv_heads)


def _readers(num_kv_heads: int, heads: Span, consumer_tp_size: int) -> Span:
    """Consumer ranks that hold some of `heads`; heads rise with the rank, so they are neighbours."""
    num_shards, num_replicas = _shards(num_kv_heads, consumer_tp_size)
    per_shard = num_kv_heads // num_shards
    return Span(heads.start // per_shard * num_replicas, ((heads.stop - 1) // per_shard + 1) * num_replicas)


@lru_cache(maxsize=4096)
def _idle_ranks(num_kv_heads: int, producer_tp_size: int, consumer_tp_size: int) -> tuple[int, ...]:
    read = {
        feed.producer_rank
        for rank in range(consumer_tp_size)
        for feed in feeds(num_kv_heads, producer_tp_size, rank, consumer_tp_size)
    }
    return tuple(rank for rank in range(producer_tp_size) if rank not in read)
