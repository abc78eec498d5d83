"""What the Triton cascade kernels are told about one slab: groups of segments, uploaded in one tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.codec.cascade_format import DTYPES, UNIT_BYTES, Frame
from pdkv_connector.layout.copy_plan import blocks_of
from pdkv_connector.layout.region import AxisMap, PlaneMap, Region
from pdkv_kernels.segments import FIELDS, PLANE_FIELDS, Coding, Paged, Paging

ALIGNMENT = 16
"""Bytes; what a GPU moves at once."""


class Group(NamedTuple):
    """Segments of one section that lie in memory alike: one launch of each kernel."""

    kv: Paged
    plan: Any
    paging: Paging
    coding: Coding
    num_segments: int
    num_blocks: int


class SlabPlan(NamedTuple):
    """One slab: the stream's frame, its header and section records as uint8 on the device, and its groups."""

    frame: Frame
    head: Any
    groups: list[Group]


class _Plane(NamedTuple):
    """One plane of one layer; `segment`: segments of its section before it."""

    section: int
    region: Region
    plane: PlaneMap
    elements: Any
    table: Any
    segment: int


def plan_slab(frame: Frame, memory: KVMemory, elements: list[Any], part: SlabPart) -> SlabPlan:
    """Plan a checked part that is not empty; `elements` are flat integer views of `memory`'s tensors."""
    alike: dict[Any, list[_Plane]] = {}
    for plane in _planes(memory, elements, part):
        alike.setdefault(_geometry(plane), []).append(plane)
    head = np.frombuffer(frame.head(0), np.int64)
    rows = [head, *(_plan_row(group, frame, part) for group in alike.values())]
    ends = np.cumsum([row.size for row in rows]).tolist()
    upload = torch.from_numpy(np.concatenate(rows)).to(elements[0].device, non_blocking=True)
    plans = [upload[start:end] for start, end in pairwise(ends)]
    groups = [_group(*pair, frame, part) for pair in zip(alike.values(), plans, strict=True)]
    return SlabPlan(frame, upload[: head.size].view(torch.uint8), groups)


def _planes(memory: KVMemory, elements: list[Any], part: SlabPart) -> Iterator[_Plane]:
    section, segment, before = -1, 0, None
    for layer, table in zip(part.layers, part.block_tables, strict=True):
        region = memory.regions[layer]
        kind = (DTYPES[region.dtype], region.head_dim)
        if kind != before:
            section, segment, before = section + 1, 0, kind
        for plane in region.planes:
            yield _Plane(section, region, plane, elements[layer], table, segment)
            segment += len(part.heads)


def _geometry(each: _Plane) -> Any:
    region = each.region
    sizes = (region.block_size, region.block_stride, region.head_stride)
    return each.section, sizes, each.plane.token, each.plane.dim


def _plan_row(group: list[_Plane], frame: Frame, part: SlabPart) -> Any:
    """A group's plan as `pdkv_kernels.segments` describes it, an even number of fields so that the next is aligned."""
    region, sections, number = group[0].region, frame.sections, group[0].section
    section, before = sections[number], sections[:number]
    first_block = sum(each.num_blocks for each in before)
    num_segments = len(group) * len(part.heads)
    fields = [
        part.tokens.start % region.block_size,
        len(part.tokens),
        len(part.heads),
        num_segments,
        num_segments * section.blocks_per_segment,
        frame.directory_at + 2 * first_block,
        frame.tables_at + sum(each.table_bytes for each in before),
        first_block,
        sum(each.num_segments for each in before),
        0,
    ]
    wanted = blocks_of(region, part.tokens)
    tables: dict[int, int] = {}
    block_ids: list[Any] = []
    at = FIELDS.value + PLANE_FIELDS.value * len(group)
    for each in group:
        if id(each.table) not in tables:
            tables[id(each.table)] = at + len(wanted) * len(block_ids)
            block_ids.append(np.asarray(each.table[wanted.start : wanted.stop], np.int64))
        fields += [_origin(each, group, part), tables[id(each.table)], each.segment]
    row = np.concatenate([np.array(fields, np.int64), *block_ids])
    return np.pad(row, (0, row.size % 2))


def _origin(each: _Plane, group: list[_Plane], part: SlabPart) -> int:
    """Elements from the start of the group's memory, its first layer's, to a plane's first head."""
    apart = int(each.elements.data_ptr() - group[0].elements.data_ptr())
    return apart // each.region.elem_bytes + each.plane.base + part.heads.start * each.region.head_stride


def _group(group: list[_Plane], plan: Any, frame: Frame, part: SlabPart) -> Group:
    first = group[0]
    region, section = first.region, frame.sections[first.section]
    align = math.gcd(ALIGNMENT, *(_origin(each, group, part) for each in group))
    tables_at = frame.tables_at + sum(each.table_bytes for each in frame.sections[: first.section])
    table_align = math.gcd(UNIT_BYTES, tables_at, section.table_bytes // section.num_segments)
    numbers, num_segments = section.numbers, len(group) * len(part.heads)
    return Group(
        Paged(first.elements, region.block_stride, region.head_stride),
        plan,
        Paging(region.block_size, region.head_dim, _axis(first.plane.token), _axis(first.plane.dim), align),
        Coding(numbers.exponent_bits, numbers.mantissa_bits, frame.width, section.num_channels > 1, table_align),
        num_segments,
        num_segments * section.blocks_per_segment,
    )


def _axis(axis: AxisMap) -> tuple[int, int, int]:
    return axis.factor, axis.outer_stride, axis.inner_stride
