"""The raw codec on host memory: KV bits as they are, in wire order `[layer][plane][head][token][dim]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdkv_connector.codec.base import Buffer, KVMemory, SlabPart
from pdkv_connector.codec.host_view import UINTS, as_units, flat_bytes
from pdkv_connector.codec.slab_shape import check_part, layer_bytes, slab_bytes
from pdkv_connector.errors import LayoutError, ProtocolError
from pdkv_connector.layout.axes import check_fits
from pdkv_connector.layout.copy_plan import blocks_of
from pdkv_connector.layout.offsets import plane_offsets
from pdkv_connector.layout.region import Region
from pdkv_connector.types import Span


class _Plane(NamedTuple):
    """One plane, ready to be moved: its tensor in units, and what `raw_loops.move` asks for."""

    units: NDArray[Any]
    unit_bytes: int
    base: int
    block_stride: int
    head_stride: int
    token: NDArray[np.uint64]
    dim: NDArray[np.uint64]
    is_rows: bool


class RawCodec:
    """Gathers and scatters host KV of any region without holding the GIL. One thread at a time per object."""

    name = "raw"

    def __init__(self) -> None:
        self._memory: KVMemory | None = None
        self._planes: list[list[_Plane]] = []
        self._move: Callable[..., None] | None = None

    def warm_up(self, memory: KVMemory | None = None) -> None:
        """Compile the loops, so that no slab pays for it: seconds the first time on a machine, then numba's cache.

        Given the engine's memory, also checks that its regions fit. Raises LayoutError.
        """
        zeros = np.zeros(1, np.uint64)
        for unit in UINTS.values():
            data = np.zeros(1, unit)
            self._loops()(data, data.copy(), zeros, (1, 0, 1, 1), (0, 1, 1), zeros, zeros, False, False)
        if memory is not None:
            self._prepare(memory)

    def max_encoded_bytes(self, memory: KVMemory, part: SlabPart) -> int:
        return slab_bytes(memory, part)

    def encode(self, memory: KVMemory, part: SlabPart, out: Buffer) -> int:
        """Gather `part` into `out`, a uint8 array; returns the bytes written. Raises LayoutError."""
        total = slab_bytes(memory, part)
        data = flat_bytes(out)
        if data.size < total:
            raise LayoutError(f"slab of {total} bytes does not fit a buffer of {data.size} bytes")
        self._move_slab(memory, part, data[:total], to_memory=False)
        return total

    def decode(self, memory: KVMemory, part: SlabPart, payload: Buffer) -> None:
        """Scatter `payload` into the blocks of `part`. Raises ProtocolError for its length, else LayoutError."""
        total = slab_bytes(memory, part)
        data = flat_bytes(payload)
        if data.size != total:
            raise ProtocolError(f"raw payload of {data.size} bytes, the slab takes {total} bytes")
        self._move_slab(memory, part, data if data.flags.writeable else data.copy(), to_memory=True)

    def _move_slab(self, memory: KVMemory, part: SlabPart, data: NDArray[np.uint8], *, to_memory: bool) -> None:
        check_part(memory, part)
        planes_of = self._prepare(memory)
        at = 0
        for layer, block_ids in zip(part.layers, _block_ids(memory, part), strict=True):
            region = memory.regions[layer]
            num_bytes = layer_bytes(region, part) // len(region.planes)
            for plane in planes_of[layer]:
                self._move_plane(region, plane, part, block_ids, data[at : at + num_bytes], to_memory)
                at += num_bytes

    def _move_plane(
        self,
        region: Region,
        plane: _Plane,
        part: SlabPart,
        block_ids: NDArray[np.uint64],
        data: NDArray[np.uint8],
        to_memory: bool,
    ) -> None:
        self._loops()(
            plane.units,
            as_units(data, plane.unit_bytes),
            block_ids,
            (region.block_size, part.tokens.start % region.block_size, len(part.tokens), len(part.heads)),
            (plane.base + part.heads.start * plane.head_stride, plane.block_stride, plane.head_stride),
            plane.token,
            plane.dim,
            plane.is_rows,
            to_memory,
        )

    def _prepare(self, memory: KVMemory) -> list[list[_Plane]]:
        """Views and offset tables of `memory`, kept for as long as the same object comes."""
        if memory is not self._memory:
            self._planes = [_planes(*pair) for pair in zip(memory.regions, memory.tensors, strict=True)]
            self._memory = memory
        return self._planes

    def _loops(self) -> Callable[..., None]:
        if self._move is None:
            from pdkv_connector.codec.raw_loops import move

            self._move = move
        return self._move


def _planes(region: Region, tensor: Any) -> list[_Plane]:
    data = flat_bytes(tensor)
    check_fits(region, data.size // region.elem_bytes)
    planes = []
    for plane in region.planes:
        at = plane_offsets(region, plane)
        token, dim = np.array(at.token, np.uint64), np.array(at.dim, np.uint64)
        units = as_units(data, at.unit_bytes)
        planes.append(_Plane(units, at.unit_bytes, at.base, at.block_stride, at.head_stride, token, dim, at.is_rows))
    return planes


def _block_ids(memory: KVMemory, part: SlabPart) -> Iterator[NDArray[np.uint64]]:
    """For each layer, the blocks that hold the tokens; layers that share a table share the array."""
    seen: dict[tuple[int, Span], NDArray[np.uint64]] = {}
    for layer, table in zip(part.layers, part.block_tables, strict=True):
        wanted = blocks_of(memory.regions[layer], part.tokens)
        key = (id(table), wanted)
        if key not in seen:
            seen[key] = _as_array(table[wanted.start : wanted.stop])
        yield seen[key]


def _as_array(block_ids: Sequence[int]) -> NDArray[np.uint64]:
    return np.asarray(block_ids, dtype=np.uint64)
