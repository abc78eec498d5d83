"""Offset tables of a plane, in the widest unit that still moves whole."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from pdkv_connector.layout.region import PlaneMap, Region

MAX_UNIT_BYTES = 8


class PlaneOffsets(NamedTuple):
    """Where one plane's units lie; a unit is `unit` neighbouring dims, and every offset and stride counts units.

    `is_rows` says that a token's dims are one contiguous run.
    """

    unit: int
    unit_bytes: int
    base: int
    block_stride: int
    head_stride: int
    token: tuple[int, ...]
    dim: tuple[int, ...]
    is_rows: bool


@lru_cache(maxsize=256)
def plane_offsets(region: Region, plane: PlaneMap) -> PlaneOffsets:
    """Offsets of one plane of `region`, with as many neighbouring dims joined as 8 bytes hold."""
    token = [plane.token.offset(index) for index in range(region.block_size)]
    dim = [plane.dim.offset(index) for index in range(region.head_dim)]
    fixed = [plane.base, region.block_stride, region.head_stride, *token]
    unit = 1
    while unit * 2 * region.elem_bytes <= MAX_UNIT_BYTES and _joins(dim, fixed, unit * 2):
        unit *= 2
    return PlaneOffsets(
        unit=unit,
        unit_bytes=unit * region.elem_bytes,
        base=plane.base // unit,
        block_stride=region.block_stride // unit,
        head_stride=region.head_stride // unit,
        token=tuple(offset // unit for offset in token),
        dim=tuple(offset // unit for offset in dim[::unit]),
        is_rows=dim == list(range(region.head_dim)),
    )


def _joins(dim: list[int], fixed: list[int], unit: int) -> bool:
    """True when each `unit` dims lie side by side, and every offset is a multiple of `unit`."""
    if len(dim) % unit or any(offset % unit for offset in fixed):
        return False
    starts = dim[::unit]
    return all(start % unit == 0 for start in starts) and all(
        offset == starts[index // unit] + index % unit for index, offset in enumerate(dim)
    )
