"""Axis maps recovered from the offsets they produce."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shapes import LAYOUTS, Shape
from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.fit import fit_axis, fit_plane
from pdkv_connector.layout.region import AxisMap, PlaneMap


def table(plane: PlaneMap, block_size: int, head_dim: int) -> list[list[int]]:
    return [
        [plane.base + plane.token.offset(t) + plane.dim.offset(d) for d in range(head_dim)] for t in range(block_size)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("block_size", "head_dim"), [(32, 32), (64, 128), (128, 64)])
def test_known_layouts_come_back(layout: str, block_size: int, head_dim: int) -> None:
    region = LAYOUTS[layout](Shape(2, block_size, 3, head_dim))
    for plane in region.planes:
        assert fit_plane(table(plane, block_size, head_dim)) == plane


@given(st.integers(1, 8), st.integers(1, 500), st.integers(1, 60), st.integers(1, 70))
def test_any_two_level_axis_is_reproduced(factor: int, outer: int, inner: int, length: int) -> None:
    offsets = [AxisMap(factor, outer, inner).offset(i) for i in range(length)]
    fitted = fit_axis(offsets)
    assert [fitted.offset(i) for i in range(length)] == offsets


@given(st.sampled_from(list(LAYOUTS)), st.integers(0, 63), st.integers(0, 31), st.integers(1, 9))
def test_one_moved_element_is_found(layout: str, token: int, dim: int, by: int) -> None:
    offsets = table(LAYOUTS[layout](Shape(1, 64, 1, 32)).planes[0], 64, 32)
    offsets[token][dim] += by
    with pytest.raises(LayoutError, match="lies at element"):
        fit_plane(offsets)


def test_misfits_are_named() -> None:
    with pytest.raises(LayoutError, match="index 3 lies at element 9, not 12"):
        fit_axis([0, 1, 11, 9])
    with pytest.raises(LayoutError, match="token 1, dim 1 lies at element 7, not 3: not separable"):
        fit_plane([[0, 1], [2, 7]])
