"""From a table of observed offsets to the axis maps that produce them."""

from __future__ import annotations

from collections.abc import Sequence

from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.axes import strided
from pdkv_connector.layout.region import AxisMap, PlaneMap


def fit_axis(offsets: Sequence[int]) -> AxisMap:
    """The map with `offset(i) == offsets[i]` for every `i`; `offsets[0]` is 0. Raises LayoutError if none has."""
    step = offsets[1] if len(offsets) > 1 else 0
    factor = next((i for i, offset in enumerate(offsets) if offset != i * step), len(offsets))
    axis = strided(step) if factor == len(offsets) else AxisMap(factor, offsets[factor], step)
    for index, offset in enumerate(offsets):
        if axis.offset(index) != offset:
            raise LayoutError(
                f"index {index} lies at element {offset}, not {axis.offset(index)}: no two-level map fits this axis"
            )
    return axis


def fit_plane(offsets: Sequence[Sequence[int]]) -> PlaneMap:
    """The plane with `offsets[t][d] == base + token map + dim map` for every token and dim.

    Shape `[block_size][head_dim]`, element offsets inside one block and head. Raises LayoutError, naming the first
    `(token, dim)` that does not fit.
    """
    base = offsets[0][0]
    token = fit_axis([row[0] - base for row in offsets])
    dim = fit_axis([offset - base for offset in offsets[0]])
    plane = PlaneMap(base, token, dim)
    for t, row in enumerate(offsets):
        for d, offset in enumerate(row):
            if (expected := base + token.offset(t) + dim.offset(d)) != offset:
                raise LayoutError(f"token {t}, dim {d} lies at element {offset}, not {expected}: not separable")
    return plane
