"""Loops that code elements into blocks of a cascade stream; the format is specified in kernels/README.md.

Everything is made in a block-sized scratch first, so that vector writes may overshoot, and copied out when it fits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pdkv_connector.codec.cascade_format import BLOCK_ELEMENTS, CODED, CONSTANT, STORED, UNIT_BYTES
from pdkv_connector.codec.cascade_table import active_mask, next_channel
from pdkv_connector.codec.cascade_workspace import PLANE_BYTES
from pdkv_connector.codec.simd import (
    Array,
    Word,
    bit_mask,
    copy_words,
    equal_mask,
    lowest_bit,
    pack_bits,
    popcount,
    store_word,
)
from pdkv_connector.codec.simd_elements import split_elements

U8, U64 = np.uint8, np.uint64
ZERO, ONE = U64(0), U64(1)


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
        copy_words(work.block, 0, out, at, num_bytes)
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
    channel, num_dims = first_channel, work.base.size - 64
    for at in range(0, stride, 64):
        split_elements(source, at, work.base, channel, numbers[0], numbers[1],
                       work.delta, work.block, stride, work.tail, at)  # fmt: skip
        channel = next_channel(channel, num_dims)
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
    n1 = n2 = n3 = 0
    escapes = 6 * PLANE_BYTES
    delta, block, planes = work.delta, work.block, work.planes
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
        low1 = _append(planes, 0, low1, n1, pack_bits(a | on2, on1), count)
        high1 = _append(planes, 1, high1, n1, pack_bits(b | on2, on1), count)
        n1 += count
        if on2 == ZERO:
            continue
        a, b = equal_mask(delta, at, c7), equal_mask(delta, at, c8)
        on3 = on2 & ~(a | b | equal_mask(delta, at, c6))
        count = popcount(on2)
        low2 = _append(planes, 2, low2, n2, pack_bits(a | on3, on2), count)
        high2 = _append(planes, 3, high2, n2, pack_bits(b | on3, on2), count)
        n2 += count
        if on3 == ZERO:
            continue
        a, b = equal_mask(delta, at, c10), equal_mask(delta, at, c11)
        on4 = on3 & ~(a | b | equal_mask(delta, at, c9))
        count = popcount(on3)
        low3 = _append(planes, 4, low3, n3, pack_bits(a | on4, on3), count)
        high3 = _append(planes, 5, high3, n3, pack_bits(b | on4, on3), count)
        n3 += count
        escapes = _put_escapes(delta, at, on4, planes, escapes)
    end += 2 * stride
    end = _finish(block, planes, 0, low1, n1, end)
    end = _finish(block, planes, 1, high1, n1, end)
    end = _finish(block, planes, 2, low2, n2, end)
    end = _finish(block, planes, 3, high2, n2, end)
    end = _finish(block, planes, 4, low3, n3, end)
    end = _finish(block, planes, 5, high3, n3, end)
    copy_words(planes, 6 * PLANE_BYTES, block, end, escapes - 6 * PLANE_BYTES)
    return end + escapes - 6 * PLANE_BYTES


@njit(nogil=True)
def _append(planes: Array, plane: int, word: Word, count: int, bits: Word, added: int) -> Word:
    """Append `added` bits behind the `count` bits so far; `word` holds the last, incomplete 64. Returns the new one."""
    shift = U64(count & 63)
    word |= bits << shift
    store_word(planes, plane * PLANE_BYTES + (count >> 6 << 3), word)
    return word if (count & 63) + added < 64 else (bits >> ONE) >> (U64(63) - shift)


@njit(nogil=True)
def _finish(block: Array, planes: Array, plane: int, word: Word, count: int, end: int) -> int:
    """Copy a finished plane behind the block's other parts."""
    store_word(planes, plane * PLANE_BYTES + (count >> 6 << 3), word)
    num_bytes = (count + 7) // 8
    copy_words(planes, plane * PLANE_BYTES, block, end, num_bytes)
    return end + num_bytes
