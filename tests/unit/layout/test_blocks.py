"""Regions from shapes and strides, against numpy's own indexing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shapes import LAYOUTS, Shape, cpu_amx, hnd, nhd
from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.axes import check_fits, elem_bytes, extent
from pdkv_connector.layout.blocks import merge_kernel_blocks, packed_region, strided_region
from pdkv_connector.layout.region import AxisMap, PlaneMap, Region

SIZES = {"B": 3, "P": 2, "H": 2, "N": 4, "D": 5}


def offset(region: Region, block: int, plane: int, head: int, token: int, dim: int) -> int:
    at = region.planes[plane]
    inside = at.base + at.token.offset(token) + at.dim.offset(dim)
    return block * region.block_stride + head * region.head_stride + inside


@given(st.permutations("BPHND"), st.permutations("BPHND"))
def test_any_axis_order_and_any_memory_order(axes: list[str], memory_order: list[str]) -> None:
    dense = np.arange(np.prod(list(SIZES.values()))).reshape([SIZES[axis] for axis in memory_order])
    view = dense.transpose([memory_order.index(axis) for axis in axes])
    strides = [stride // view.itemsize for stride in view.strides]
    region = strided_region("layer", "".join(axes), view.shape, strides, "bfloat16", SIZES["D"])
    canonical = view.transpose([axes.index(axis) for axis in "BPHND"])
    for index, value in np.ndenumerate(canonical):
        assert offset(region, *index) == value
    assert extent(region) == dense.size


def test_content_axis_holds_the_planes_side_by_side() -> None:
    region = strided_region("layer", "BHNC", (3, 2, 4, 10), (80, 40, 10, 1), "float16", 5)
    assert [plane.base for plane in region.planes] == [0, 5]
    assert len(strided_region("mla", "BNC", (3, 4, 5), (20, 5, 1), "bfloat16", 5).planes) == 1


@pytest.mark.parametrize("build", [nhd, hnd])
def test_kernel_blocks_join_to_manager_blocks(build: object) -> None:
    small = build(Shape(12, 4, 2, 5))  # type: ignore[operator]
    large = merge_kernel_blocks(small, 16)
    assert (large.num_blocks, large.block_size) == (3, 16)
    for block, token in np.ndindex(3, 16):
        place = offset(small, block * 4 + token // 4, 1, 1, token % 4, 3)
        assert offset(large, block, 1, 1, token, 3) == place
    assert merge_kernel_blocks(small, 4) is small


def test_packed_blocks_do_not_join() -> None:
    with pytest.raises(LayoutError, match="set the engine's block size to 32"):
        merge_kernel_blocks(cpu_amx(Shape(4, 32, 1, 32)), 64)
    with pytest.raises(LayoutError, match="3 blocks of 4 tokens do not make up blocks of 8"):
        merge_kernel_blocks(nhd(Shape(3, 4, 1, 8)), 8)


@given(st.sampled_from(list(LAYOUTS)), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_dense_layouts_fill_their_extent_without_collision(layout: str, b: int, n: int, h: int, d: int) -> None:
    region = LAYOUTS[layout](Shape(b, 32 * n, h, 32 * d))
    grids = [
        np.add.outer(
            [plane.base + plane.token.offset(t) for t in range(region.block_size)],
            [plane.dim.offset(i) for i in range(region.head_dim)],
        ).ravel()
        for plane in region.planes
    ]
    outer = np.add.outer(np.arange(b) * region.block_stride, np.arange(h) * region.head_stride).ravel()
    places = np.add.outer(outer, np.concatenate(grids)).ravel()
    assert np.unique(places).size == places.size == extent(region)


def test_extent_counts_the_last_full_group() -> None:
    plane = PlaneMap(0, AxisMap(4, 1, 10), AxisMap(1, 100, 0))
    region = Region("layer", 1, 5, 1, 1, "uint8", 1, 0, 0, (plane,))
    assert extent(region) == max(plane.token.offset(t) for t in range(5)) + 1
    with pytest.raises(LayoutError, match="layer layer reaches element 30, its tensor has 30"):
        check_fits(region, 30)


@pytest.mark.parametrize(
    ("axes", "shape", "strides", "head_dim", "message"),
    [
        ("BHND", (2, 3, 4, 5), (60, 20, 5, 1), 6, "the last axis holds 5 dims, the model says head_dim 6"),
        ("BHNC", (2, 3, 4, 9), (108, 36, 9, 1), 5, "9 content elements are no whole planes of head_dim 5"),
        ("BHN", (2, 3, 4), (12, 4, 1), 5, "must have either D or C"),
        ("HND", (2, 3, 4), (12, 4, 1), 4, "lack B"),
        ("BXND", (2, 3, 4, 5), (60, 20, 5, 1), 5, "do not name shape"),
        ("BND", (2, 0, 5), (5, 5, 1), 5, "must be positive"),
    ],
)
def test_shapes_that_do_not_fit_are_named(
    axes: str, shape: tuple[int, ...], strides: tuple[int, ...], head_dim: int, message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        strided_region("layer", axes, shape, strides, "bfloat16", head_dim)


def test_a_packed_interior_must_be_contiguous() -> None:
    planes = cpu_amx(Shape(1, 32, 1, 32)).planes
    with pytest.raises(LayoutError, match="no contiguous block interior"):
        packed_region("layer", (2, 3, 32, 64), (6144, 64, 192, 1), "bfloat16", planes)


def test_unknown_dtype_is_named() -> None:
    with pytest.raises(LayoutError, match="'int4' is not supported; use one of float32"):
        elem_bytes("int4")
