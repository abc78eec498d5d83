"""Loops that choose a segment's bases and codebook from a sample of it, as kernels/README.md says encoders do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pdkv_connector.codec.cascade_format import CODEBOOK_BYTES, COUNT_EVERY, SAMPLE_TOKENS
from pdkv_connector.codec.cascade_workspace import NUM_CANDIDATES
from pdkv_connector.codec.simd import Array, Word, equal_mask, popcount
from pdkv_connector.codec.simd_elements import take_exponents

U8, U64 = np.uint8, np.uint64
ONE, ALL = U64(1), U64(0xFFFFFFFFFFFFFFFF)


@njit(nogil=True)
def build_table(segment: Array, shape: tuple[int, int, int], numbers: tuple[int, int], table: Array, work: Any) -> None:
    """Fill `table`, 16 bytes of codebook and `channels` bases, from a sample of `segment`.

    segment: `tokens * dims` elements. shape: (tokens, dims, channels). numbers: (mantissa bits, exponent mask).
    """
    num_tokens, num_dims, channels = shape
    step = (num_tokens + SAMPLE_TOKENS - 1) // SAMPLE_TOKENS
    num_samples = (num_tokens + step - 1) // step
    sample, sums = work.sample, work.sums
    _sample_exponents(segment, num_dims, step, numbers, work)
    sums[:] = 0
    for s in range(num_samples):
        for c in range(num_dims):
            sums[c] += sample[s, c]
    bases = table[CODEBOOK_BYTES : CODEBOOK_BYTES + channels]
    if channels == 1:
        bases[0] = U8(sums[:num_dims].sum() // (num_samples * num_dims))
    else:
        for c in range(num_dims):
            bases[c] = U8(sums[c] // num_samples)
    tile_base(bases, work.base, num_dims)
    counts = work.counts
    counts[:] = 0
    for s in range(0, num_samples, COUNT_EVERY):
        for c in range(num_dims):
            sample[s, c] -= work.base[c]
        _count(sample[s], num_dims, counts)
    _rank(counts, table)


@njit(nogil=True)
def _sample_exponents(segment: Array, num_dims: int, step: int, numbers: tuple[int, int], work: Any) -> None:
    """Exponents of every `step`th token, in the rows of `work.sample`."""
    flat, stride = work.sample.reshape(work.sample.size), work.sample.shape[1]
    here = 0
    for start in range(0, segment.size, step * num_dims):
        for c in range(0, num_dims, 64):
            at = start + c
            if at + 64 <= segment.size:
                take_exponents(segment, at, numbers[0], numbers[1], flat, here + c)
            else:
                work.elements[: segment.size - at] = segment[at:]
                take_exponents(work.elements, 0, numbers[0], numbers[1], flat, here + c)
        here += stride


@njit(nogil=True)
def tile_base(bases: Array, tiled: Array, num_dims: int) -> None:
    """Fill `tiled`, `num_dims + 64` long, so that the bases of any 64 elements in a row lie in a row."""
    for i in range(tiled.size):
        tiled[i] = bases[i % num_dims] if bases.size > 1 else bases[0]


@njit(nogil=True)
def next_channel(channel: int, num_dims: int) -> int:
    """The channel of the element 64 places on."""
    channel += 64
    return channel - num_dims if channel < 2 * num_dims and channel >= num_dims else channel % num_dims


@njit(nogil=True)
def _count(row: Array, num_dims: int, counts: Array) -> None:
    """Count, in one token's dims, each delta from -16 to 15."""
    for at in range(0, num_dims, 64):
        active = active_mask(num_dims - at)
        for k in range(NUM_CANDIDATES):
            counts[k] += popcount(equal_mask(row, at, U8(k - NUM_CANDIDATES // 2)) & active)


@njit(nogil=True)
def _rank(counts: Array, table: Array) -> None:
    """Codebook: the deltas by falling count, lower delta first among equals; 16 entries."""
    for k in range(NUM_CANDIDATES):
        rank = 0
        for j in range(NUM_CANDIDATES):
            rank += counts[j] > counts[k] or (counts[j] == counts[k] and j < k)
        if rank < CODEBOOK_BYTES:
            table[rank] = U8(k - NUM_CANDIDATES // 2)


@njit(nogil=True)
def active_mask(count: int) -> Word:
    """Mask of the first `count` bytes, at most 64."""
    return ALL if count >= 64 else (ONE << U64(count)) - ONE
