"""Facts about axis maps: the plain stride, how far a map reaches, what a dtype weighs."""

from __future__ import annotations

from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.region import AxisMap, Region

ELEM_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint8": 1,
    "int8": 1,
}


def strided(stride: int) -> AxisMap:
    """A plain axis: index `i` lies at `i * stride` elements."""
    return AxisMap(factor=1, outer_stride=stride, inner_stride=0)


def elem_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype` (a torch name without `torch.`). Raises LayoutError for an unknown one."""
    try:
        return ELEM_BYTES[dtype]
    except KeyError:
        raise LayoutError(f"KV dtype {dtype!r} is not supported; use one of {', '.join(ELEM_BYTES)}") from None


def reach(axis: AxisMap, length: int) -> int:
    """Largest element offset among indices `0 .. length - 1`; strides are not negative."""
    last = axis.offset(length - 1)
    end_of_last_full_group = (length // axis.factor) * axis.factor - 1
    return last if end_of_last_full_group < 0 else max(last, axis.offset(end_of_last_full_group))


def extent(region: Region) -> int:
    """Number of elements, counted from the region's origin, that a tensor must have to hold `region`."""
    inside = max(
        plane.base + reach(plane.token, region.block_size) + reach(plane.dim, region.head_dim)
        for plane in region.planes
    )
    return (region.num_blocks - 1) * region.block_stride + (region.num_heads - 1) * region.head_stride + inside + 1


def check_fits(region: Region, num_elements: int) -> None:
    """Raise LayoutError when `region` reaches past a tensor of `num_elements` elements."""
    if (needed := extent(region)) > num_elements:
        raise LayoutError(
            f"layer {region.name} reaches element {needed - 1}, its tensor has {num_elements}; check shape and strides"
        )
