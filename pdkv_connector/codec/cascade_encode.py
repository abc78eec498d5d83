"""Loops that code elements into blocks of a cascade stream; the format is specified in kernels/README.md.

Everything is made in a block-sized scratch first, so that vector writes may overshoot, and copied out when it fits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from pdkv_connector.codec.cascade_format import (
    BLOCK_ELEMENTS,
    CODEBOOK_BYTES,
    CODED,
    CONSTANT,
    COUNT_EVERY,
    SAMPLE_TOKENS,
    STORED,
    UNIT_BYTES,
)
from pdkv_connector.codec.simd import (
    Word,
    bit_mask,
    equal_mask,
    lowest_bit,
    pack_bits,
    popcount,
    store_word,
)
from pdkv_connector.codec.simd_elements import split_elements, take_exponents

Array = Any
U8, U64 = np.uint8, np.uint64
ZERO, ONE, ALL = U64(0), U64(1), U64(0xFFFFFFFFFFFFFFFF)
NUM_CANDIDATES = 32
PLANE_BYTES = BLOCK_ELEMENTS // 8 + 16


class Workspace(NamedTuple):
    """Scratch of one thread, one element size; `elements` are uints of that size."""

    elements: Array
    delta: Array
    tail: Array
    base: Array
    planes: Array
    escapes: Array
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
        np.zeros(padded + num_dims, U8),
        np.zeros(padded + num_dims, U8),
        np.zeros((6, PLANE_BYTES), U8),
        np.zeros(BLOCK_ELEMENTS, U8),
        np.zeros(8 * BLOCK_ELEMENTS, U8),
        np.zeros(16, U64),
        np.zeros((SAMPLE_TOKENS, (num_dims + 63) // 64 * 64), U8),
        np.zeros(num_dims, np.uint16),
        np.zeros(NUM_CANDIDATES, np.int64),
    )


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
    """Repeat `bases`, one or `num_dims` of them, so that any block's first channel finds its run of bases."""
    if bases.size == 1:
        tiled[:] = bases[0]
        return
    for start in range(0, tiled.size, num_dims):
        for c in range(min(num_dims, tiled.size - start)):
            tiled[start + c] = bases[c]


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


@njit(nogil=True)
def encode_segment(
    segment: Array, num_dims: int, numbers: tuple[int, int], width: int, codebook: Array,
    directory: Array, out: Array, at: int, work: Any,
) -> int:  # fmt: skip
    """Code a segment's blocks into `out` from byte `at` on; returns where they end, or -1 when they do not fit.

    num_dims: elements of a token. width: bits of a code, 2 (four levels) or 4 (one level). codebook: uint8; the tiled
    bases are in `work`. directory: uint16, an entry a block.
    """
    for index in range(directory.size):
        start = index * BLOCK_ELEMENTS
        block = segment[start : min(start + BLOCK_ELEMENTS, segment.size)]
        raw_bytes = padded_bytes(block.size * block.itemsize)
        kind, num_bytes = CONSTANT, UNIT_BYTES
        if is_constant(block):
            _put_elements(block[:1], work.block)
        else:
            kind, num_bytes = CODED, _code_block(block, start % num_dims, numbers, width, codebook, work)
            if num_bytes >= raw_bytes:
                kind, num_bytes = STORED, raw_bytes
                _put_elements(block, work.block)
        if at + num_bytes > out.size:
            return -1
        out[at : at + num_bytes] = work.block[:num_bytes]
        directory[index] = kind << 14 | num_bytes // UNIT_BYTES
        at += num_bytes
    return at


@njit(nogil=True)
def padded_bytes(num_bytes: int) -> int:
    """The next multiple of a unit."""
    return (num_bytes + UNIT_BYTES - 1) // UNIT_BYTES * UNIT_BYTES


@njit(nogil=True)
def is_constant(block: Array) -> bool:
    """True when all elements have the same bits."""
    first = block[0]
    if block[block.size - 1] != first:
        return False
    differ = first ^ first
    for i in range(block.size):
        differ |= block[i] ^ first
    return bool(differ == 0)


@njit(nogil=True)
def _put_elements(block: Array, out: Array) -> None:
    """Elements, little-endian, padded with zero bytes."""
    num_bytes = block.size * block.itemsize
    out[num_bytes : padded_bytes(num_bytes)] = 0
    out[:num_bytes].view(block.dtype)[:] = block


@njit(nogil=True)
def _code_block(
    block: Array, first_channel: int, numbers: tuple[int, int], width: int, codebook: Array, work: Any
) -> int:
    """One coded block in `work.block`; returns its padded length in bytes."""
    n: int = block.size
    low_planes: int = block.itemsize - 1
    stride = (n + 63) // 64 * 64
    source = block
    if stride != n:
        source = work.elements
        source[:n] = block
        source[n:stride] = 0
    for at in range(0, stride, 64):
        split_elements(source, at, work.base, first_channel + at, numbers[0], numbers[1],
                       work.delta, work.block, stride, work.tail, at)  # fmt: skip
    end = low_planes * stride
    for j in range(numbers[0] + 1 - 8 * low_planes):
        for at in range(0, stride, 64):
            store_word(work.block, end + at // 8, bit_mask(work.tail, at, U8(1 << j)))
        end += stride // 8
    end = _code_pairs(n, codebook, end, work) if width == 2 else _code_nibbles(n, codebook, end, work)
    num_bytes: int = padded_bytes(end)
    work.block[end:num_bytes] = 0
    return num_bytes


@njit(nogil=True)
def _code_nibbles(n: int, codebook: Array, end: int, work: Any) -> int:
    """One level of 4-bit codes: four planes, then the escaped deltas."""
    stride = (n + 63) // 64 * 8
    escapes = end + 4 * stride
    for at in range(0, n, 64):
        active = active_mask(n - at)
        p0 = p1 = p2 = p3 = known = ZERO
        for k in range(15):
            hits = equal_mask(work.delta, at, codebook[k]) & active
            known |= hits
            p0 |= hits if k & 1 else ZERO
            p1 |= hits if k & 2 else ZERO
            p2 |= hits if k & 4 else ZERO
            p3 |= hits if k & 8 else ZERO
        escaped = active & ~known
        here = end + at // 8
        store_word(work.block, here, p0 | escaped)
        store_word(work.block, here + stride, p1 | escaped)
        store_word(work.block, here + 2 * stride, p2 | escaped)
        store_word(work.block, here + 3 * stride, p3 | escaped)
        escapes = _put_escapes(work.delta, at, escaped, work.block, escapes)
    return escapes


@njit(nogil=True)
def _put_escapes(delta: Array, at: int, escaped: Word, out: Array, end: int) -> int:
    """Append the deltas of escaped elements to `out`, in order; returns the new end."""
    while escaped:
        out[end] = delta[at + lowest_bit(escaped)]
        end += 1
        escaped &= escaped - ONE
    return end


@njit(nogil=True)
def _code_pairs(n: int, codebook: Array, end: int, work: Any) -> int:
    """Four levels of 2-bit codes: two planes a level, each level only for the elements that the last one passed on."""
    stride = (n + 63) // 64 * 8
    low1 = high1 = low2 = high2 = low3 = high3 = ZERO
    n1 = n2 = n3 = num_escapes = 0
    delta, block, escapes = work.delta, work.block, work.escapes
    p0, p1, p2 = work.planes[0], work.planes[1], work.planes[2]
    p3, p4, p5 = work.planes[3], work.planes[4], work.planes[5]
    c0, c1, c2, c3, c4, c5 = codebook[0], codebook[1], codebook[2], codebook[3], codebook[4], codebook[5]
    c6, c7, c8, c9, c10, c11 = codebook[6], codebook[7], codebook[8], codebook[9], codebook[10], codebook[11]
    for at in range(0, n, 64):
        active = active_mask(n - at)
        a, b = equal_mask(delta, at, c1) & active, equal_mask(delta, at, c2) & active
        on1 = active & ~(a | b | equal_mask(delta, at, c0))
        store_word(block, end + at // 8, a | on1)
        store_word(block, end + stride + at // 8, b | on1)
        if on1 == ZERO:
            continue
        a, b = equal_mask(delta, at, c4), equal_mask(delta, at, c5)
        on2 = on1 & ~(a | b | equal_mask(delta, at, c3))
        count = popcount(on1)
        low1 = _append(p0, low1, n1, pack_bits(a | on2, on1), count)
        high1 = _append(p1, high1, n1, pack_bits(b | on2, on1), count)
        n1 += count
        if on2 == ZERO:
            continue
        a, b = equal_mask(delta, at, c7), equal_mask(delta, at, c8)
        on3 = on2 & ~(a | b | equal_mask(delta, at, c6))
        count = popcount(on2)
        low2 = _append(p2, low2, n2, pack_bits(a | on3, on2), count)
        high2 = _append(p3, high2, n2, pack_bits(b | on3, on2), count)
        n2 += count
        if on3 == ZERO:
            continue
        a, b = equal_mask(delta, at, c10), equal_mask(delta, at, c11)
        on4 = on3 & ~(a | b | equal_mask(delta, at, c9))
        count = popcount(on3)
        low3 = _append(p4, low3, n3, pack_bits(a | on4, on3), count)
        high3 = _append(p5, high3, n3, pack_bits(b | on4, on3), count)
        n3 += count
        num_escapes = _put_escapes(delta, at, on4, escapes, num_escapes)
    end += 2 * stride
    end = _finish(block, p0, low1, n1, end)
    end = _finish(block, p1, high1, n1, end)
    end = _finish(block, p2, low2, n2, end)
    end = _finish(block, p3, high2, n2, end)
    end = _finish(block, p4, low3, n3, end)
    end = _finish(block, p5, high3, n3, end)
    block[end : end + num_escapes] = escapes[:num_escapes]
    return end + num_escapes


@njit(nogil=True)
def _append(plane: Array, word: Word, count: int, bits: Word, added: int) -> Word:
    """Append `added` bits behind the `count` bits so far; `word` holds the last, incomplete 64. Returns the new one."""
    shift = U64(count & 63)
    word |= bits << shift
    if (count & 63) + added < 64:
        return word
    store_word(plane, count >> 6 << 3, word)
    return (bits >> ONE) >> (U64(63) - shift)


@njit(nogil=True)
def _finish(block: Array, plane: Array, word: Word, count: int, end: int) -> int:
    """Copy a finished plane behind the block's other parts."""
    store_word(plane, count >> 6 << 3, word)
    num_bytes = (count + 7) // 8
    block[end : end + num_bytes] = plane[:num_bytes]
    return end + num_bytes
