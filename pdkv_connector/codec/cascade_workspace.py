"""Scratch of the coding loops: everything is made here first, so that vector writes may overshoot."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pdkv_connector.codec.cascade_format import BLOCK_ELEMENTS, SAMPLE_TOKENS

Array = Any
U8, U64 = np.uint8, np.uint64
NUM_CANDIDATES = 32
"""Deltas that are counted for a codebook: -16 .. 15."""
PLANE_BYTES = BLOCK_ELEMENTS // 8 + 16


class Workspace(NamedTuple):
    """Scratch of one thread, one element size; `elements` are uints of that size."""

    elements: Array
    delta: Array
    tail: Array
    base: Array
    planes: Array
    block: Array
    masks: Array
    sample: Array
    sums: Array
    counts: Array


def workspace(elem_bytes: int, num_dims: int) -> Workspace:
    """Scratch for elements of `elem_bytes` in rows of `num_dims`."""
    padded = BLOCK_ELEMENTS + 64
    return Workspace(
        np.zeros(padded, f"u{elem_bytes}"),
        np.zeros(padded, U8),
        np.zeros(padded, U8),
        np.zeros(num_dims + 64, U8),
        np.zeros(6 * PLANE_BYTES + BLOCK_ELEMENTS + 8, U8),
        np.zeros(8 * BLOCK_ELEMENTS, U8),
        np.zeros(16, U64),
        np.zeros((SAMPLE_TOKENS, (num_dims + 63) // 64 * 64), U8),
        np.zeros(num_dims, np.uint16),
        np.zeros(NUM_CANDIDATES, np.int64),
    )
