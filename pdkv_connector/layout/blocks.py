"""Regions of the block layouts that engines allocate, from a tensor's shape and strides.

Axes are letters, as in the engines' own names: B block, P plane (K, V), H head, N token in its block, D dim, and C
content, the planes of a token side by side (`num_planes * head_dim`). vLLM 0.32 shows every layer as BHNC whatever lies
in memory (LBNHC is "NHD", LBHNC is "HND"); older engines use PBNHD or BPNHD; MLA is BND or BHNC with one head.
"""

from __future__ import annotations

from collections.abc import Sequence

from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.axes import elem_bytes, strided
from pdkv_connector.layout.region import AxisMap, PlaneMap, Region


def strided_region(
    name: str, axes: str, shape: Sequence[int], strides: Sequence[int], dtype: str, head_dim: int
) -> Region:
    """Region of a tensor whose axes are all plain; `strides` in elements. Raises LayoutError when they do not fit."""
    size, stride = _axes(name, axes, shape, strides)
    return Region(
        name=name,
        num_blocks=size["B"],
        block_size=size["N"],
        num_heads=size.get("H", 1),
        head_dim=head_dim,
        dtype=dtype,
        elem_bytes=elem_bytes(dtype),
        block_stride=stride["B"],
        head_stride=stride.get("H", 0),
        planes=tuple(
            PlaneMap(base, strided(stride["N"]), strided(stride.get("D", stride.get("C", 0))))
            for base in _plane_bases(name, size, stride, head_dim)
        ),
    )


def packed_region(
    name: str, shape: Sequence[int], strides: Sequence[int], dtype: str, planes: tuple[PlaneMap, ...]
) -> Region:
    """Region of a BHNC tensor whose interior `[N, C]` of each block and head is packed as `planes` say.

    Raises LayoutError when the interior is not one contiguous run.
    """
    size, stride = _axes(name, "BHNC", shape, strides)
    head_dim, rest = divmod(size["C"], len(planes))
    if rest or stride["C"] != 1 or stride["N"] != size["C"]:
        raise LayoutError(
            f"layer {name}: shape {tuple(shape)}, strides {tuple(strides)} is no contiguous block interior of "
            f"{len(planes)} planes"
        )
    return Region(
        name=name,
        num_blocks=size["B"],
        block_size=size["N"],
        num_heads=size["H"],
        head_dim=head_dim,
        dtype=dtype,
        elem_bytes=elem_bytes(dtype),
        block_stride=stride["B"],
        head_stride=stride["H"],
        planes=planes,
    )


def merge_kernel_blocks(region: Region, block_size: int) -> Region:
    """The same memory seen in manager blocks of `block_size` tokens, each made of neighbouring kernel blocks.

    Raises LayoutError when the sizes do not divide or the token axis has two levels already.
    """
    ratio, rest = divmod(block_size, region.block_size)
    if rest or ratio == 0 or region.num_blocks % ratio:
        raise LayoutError(
            f"layer {region.name}: {region.num_blocks} blocks of {region.block_size} tokens do not make up "
            f"blocks of {block_size}"
        )
    if ratio == 1:
        return region
    if any(plane.token.factor != 1 for plane in region.planes):
        raise LayoutError(
            f"layer {region.name}: packed blocks of {region.block_size} tokens do not join to {block_size}; "
            f"set the engine's block size to {region.block_size}"
        )
    planes = tuple(
        PlaneMap(plane.base, AxisMap(region.block_size, region.block_stride, plane.token.outer_stride), plane.dim)
        for plane in region.planes
    )
    return Region(
        name=region.name,
        num_blocks=region.num_blocks // ratio,
        block_size=block_size,
        num_heads=region.num_heads,
        head_dim=region.head_dim,
        dtype=region.dtype,
        elem_bytes=region.elem_bytes,
        block_stride=region.block_stride * ratio,
        head_stride=region.head_stride,
        planes=planes,
    )


def _axes(name: str, axes: str, shape: Sequence[int], strides: Sequence[int]) -> tuple[dict[str, int], dict[str, int]]:
    if not len(axes) == len(shape) == len(strides) or len(set(axes)) != len(axes) or set(axes) - set("BPHNDC"):
        raise LayoutError(f"layer {name}: axes {axes!r} do not name shape {tuple(shape)}, strides {tuple(strides)}")
    if missing := {"B", "N"} - set(axes):
        raise LayoutError(f"layer {name}: axes {axes!r} lack {', '.join(sorted(missing))}")
    if ("D" in axes) == ("C" in axes):
        raise LayoutError(f"layer {name}: axes {axes!r} must have either D or C")
    if min(shape) < 1 or min(strides) < 0:
        raise LayoutError(f"layer {name}: shape {tuple(shape)}, strides {tuple(strides)} must be positive")
    return dict(zip(axes, shape, strict=True)), dict(zip(axes, strides, strict=True))


def _plane_bases(name: str, size: dict[str, int], stride: dict[str, int], head_dim: int) -> list[int]:
    if "C" in size:
        num_planes, rest = divmod(size["C"], head_dim)
        if rest or "P" in size:
            raise LayoutError(f"layer {name}: {size['C']} content elements are no whole planes of head_dim {head_dim}")
        return [plane * head_dim * stride["C"] for plane in range(num_planes)]
    if size["D"] != head_dim:
        raise LayoutError(f"layer {name}: the last axis holds {size['D']} dims, the model says head_dim {head_dim}")
    return [plane * stride["P"] for plane in range(size["P"])] if "P" in size else [0]
