"""Runs of tokens inside blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shapes import Shape, nhd
from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.copy_plan import Run, blocks_of, plan_runs
from pdkv_connector.types import Span


@given(st.data())
def test_runs_name_each_token_once_in_order(data: st.DataObject) -> None:
    size, num_blocks = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    region = nhd(Shape(num_blocks, size, 1, 2))
    table = data.draw(st.permutations(range(num_blocks)))
    start = data.draw(st.integers(0, size * num_blocks))
    tokens = Span(start, data.draw(st.integers(start, size * num_blocks)))
    runs = plan_runs(region, table, tokens)
    places = [(run.block_id, run.block_token + i, run.slab_token + i) for run in runs for i in range(run.num_tokens)]
    assert places == [(table[t // size], t % size, t - start) for t in tokens]
    assert [run.block_id for run in runs] == [table[i] for i in blocks_of(region, tokens)]


def test_example() -> None:
    region = nhd(Shape(8, 16, 1, 2))
    assert plan_runs(region, (7, 3, 5), Span(10, 35)) == [Run(7, 10, 6, 0), Run(3, 0, 16, 6), Run(5, 0, 3, 22)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ((7, 8, 5), "block table entry 1 is block 8 of 8"),
        ((7, 3, -1), r"block table entry 2 is a hole \(-1\); its tokens are not kept"),
        ((7, None, 5), r"block table entry 1 is a hole \(None\)"),
        ((7, 3), "token 34 lies past the block table, which holds 2 blocks of 16 tokens"),
    ],
)
def test_bad_tables_are_named(table: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        plan_runs(nhd(Shape(8, 16, 1, 2)), table, Span(10, 35))
