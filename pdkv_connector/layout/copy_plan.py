"""From a range of tokens and a block table to the runs of tokens that lie inside one block each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.region import Region
from pdkv_connector.types import Span


class Run(NamedTuple):
    """Consecutive tokens of one block: they start at `block_token` in the block, at `slab_token` in the slab."""

    block_id: int
    block_token: int
    num_tokens: int
    slab_token: int


def plan_runs(region: Region, block_table: Sequence[int], tokens: Span) -> list[Run]:
    """The runs that cover `tokens`, in token order. Raises LayoutError when the table does not hold them all.

    `block_table[i]` holds tokens `[i * block_size, (i + 1) * block_size)` of the request.
    """
    check_table(region, block_table, tokens)
    size = region.block_size
    runs = []
    token = tokens.start
    while token < tokens.stop:
        index, inside = divmod(token, size)
        count = min(size - inside, tokens.stop - token)
        runs.append(Run(block_table[index], inside, count, token - tokens.start))
        token += count
    return runs


def blocks_of(region: Region, tokens: Span) -> Span:
    """Entries of a block table that `tokens` touch; empty for no tokens."""
    if not tokens:
        return Span(0, 0)
    return Span(tokens.start // region.block_size, (tokens.stop - 1) // region.block_size + 1)


def check_table(region: Region, block_table: Sequence[int], tokens: Span) -> None:
    """Raise LayoutError, naming entry and value, unless every token has a block of `region` to lie in.

    Entries outside the range are not looked at: a sliding window leaves holes (None or negative) there.
    """
    if tokens.start < 0:
        raise LayoutError(f"layer {region.name}: token range [{tokens.start}, {tokens.stop}) starts below zero")
    wanted = blocks_of(region, tokens)
    if wanted.stop > len(block_table):
        raise LayoutError(
            f"layer {region.name}: token {tokens.stop - 1} lies past the block table, which holds "
            f"{len(block_table)} blocks of {region.block_size} tokens"
        )
    ids = block_table[wanted.start : wanted.stop]
    if _all_in_range(ids, region.num_blocks):
        return
    for index, block_id in zip(wanted, ids, strict=True):
        _check_block(region, index, block_id)


def _all_in_range(ids: Sequence[int], num_blocks: int) -> bool:
    try:
        return not len(ids) or (min(ids) >= 0 and max(ids) < num_blocks)
    except TypeError:
        return False


def _check_block(region: Region, index: int, block_id: int | None) -> None:
    if block_id is None or block_id < 0:
        raise LayoutError(
            f"layer {region.name}: block table entry {index} is a hole ({block_id}); its tokens are not kept"
        )
    if block_id >= region.num_blocks:
        raise LayoutError(f"layer {region.name}: block table entry {index} is block {block_id} of {region.num_blocks}")
