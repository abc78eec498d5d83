"""Loops that turn the blocks of a cascade stream back into elements; the format is specified in kernels/README.md.

Nothing a block says is believed before it is checked: counts are taken from the planes themselves, and a block whose
parts do not add up to its length is refused. A block is copied to a scratch first, so that no read leaves the stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pdkv_connector.codec.cascade_encode import padded_bytes
from pdkv_connector.codec.cascade_format import BLOCK_ELEMENTS, CODEBOOK_BYTES, CODED, CONSTANT, STORED, UNIT_BYTES
from pdkv_connector.codec.cascade_table import active_mask, next_channel, tile_base
from pdkv_connector.codec.simd import (
    Array,
    Word,
    copy_words,
    load_word,
    lowest_bit,
    popcount,
    spread_bits,
    store_bits,
    store_choice,
    store_lookup,
)
from pdkv_connector.codec.simd_elements import join_elements

U8, U64 = np.uint8, np.uint64
ZERO, ONE = U64(0), U64(1)
OK, BAD_KIND, BAD_LENGTH, BAD_PARTS = 0, 1, 2, 3


@njit(nogil=True)
def decode_segment(
    segment: Array, num_dims: int, numbers: tuple[int, int], width: int, table: Array,
    directory: Array, stream: Array, at: int, work: Any,
) -> tuple[int, int]:  # fmt: skip
    """Decode a segment's blocks, which begin at byte `at` of `stream`; returns (where they end, fault).

    segment: the elements, to be written. table: 16 bytes of codebook, then the bases.
    """
    tile_base(table[CODEBOOK_BYTES:], work.base, num_dims)
    for index in range(directory.size):
        start = index * BLOCK_ELEMENTS
        block = segment[start : min(start + BLOCK_ELEMENTS, segment.size)]
        entry: Any = np.int64(directory[index])
        kind, num_bytes = entry >> 14, (entry & 0x3FFF) * UNIT_BYTES
        if at + num_bytes > stream.size or num_bytes > work.block.size // 2:
            return at, BAD_LENGTH
        copy_words(stream, at, work.block, 0, num_bytes)
        fault = OK
        if kind == CODED:
            fault = _decode_block(block, start % num_dims, numbers, width, table, num_bytes, work)
        elif kind == STORED:
            fault = _take_elements(block, num_bytes, work.block)
        elif kind == CONSTANT:
            fault = _take_constant(block, num_bytes, work.block)
        else:
            fault = BAD_KIND
        if fault != OK:
            return at, fault
        at += num_bytes
    return at, OK


@njit(nogil=True)
def _all_zero(data: Array) -> bool:
    total = U8(0)
    for i in range(data.size):
        total |= data[i]
    return bool(total == 0)


@njit(nogil=True)
def _take_elements(block: Array, num_bytes: int, source: Array) -> int:
    raw = block.size * block.itemsize
    if num_bytes != padded_bytes(raw) or not _all_zero(source[raw:num_bytes]):
        return BAD_LENGTH
    block[:] = source[:raw].view(block.dtype)
    return OK


@njit(nogil=True)
def _take_constant(block: Array, num_bytes: int, source: Array) -> int:
    if num_bytes != UNIT_BYTES or not _all_zero(source[block.itemsize : UNIT_BYTES]):
        return BAD_LENGTH
    block[:] = source[: block.itemsize].view(block.dtype)[0]
    return OK


@njit(nogil=True)
def _decode_block(
    block: Array, first_channel: int, numbers: tuple[int, int], width: int, table: Array, num_bytes: int, work: Any,
) -> int:  # fmt: skip
    n: int = block.size
    low_planes: int = block.itemsize - 1
    stride = (n + 63) // 64 * 64
    tail_bits = numbers[0] + 1 - 8 * low_planes
    tails_at = low_planes * stride
    codes_at = tails_at + tail_bits * stride // 8
    if num_bytes < codes_at:
        return BAD_PARTS
    source = work.block
    fault: int = OK
    if width == 2:
        fault = _deltas_of_pairs(n, table, source, codes_at, num_bytes, work.masks, work.delta)
    else:
        fault = _deltas_of_nibbles(n, table, source, codes_at, num_bytes, work.masks, work.delta)
    if fault != OK:
        return fault
    _take_tails(stride, tail_bits, source, tails_at, work.masks, work.tail)
    channel, num_dims, whole = first_channel, work.base.size - 64, n // 64 * 64
    for at in range(0, whole, 64):
        join_elements(block, at, work.base, channel, numbers[0], numbers[1],
                      work.delta, source, stride, work.tail, at)  # fmt: skip
        channel = next_channel(channel, num_dims)
    if whole < n:
        join_elements(work.elements, 0, work.base, channel, numbers[0], numbers[1],
                      work.delta, source, stride, work.tail, whole)  # fmt: skip
        block[whole:] = work.elements[: n - whole]
    return OK


@njit(nogil=True)
def _take_tails(stride: int, tail_bits: int, source: Array, at: int, masks: Array, tail: Array) -> None:
    if tail_bits == 0:
        return
    masks[3] = ZERO
    for i in range(0, stride, 64):
        for j in range(tail_bits):
            masks[j] = load_word(source, at + (j * stride + i) // 8)
        store_bits(tail, i, masks, 4)


@njit(nogil=True)
def _deltas_of_nibbles(n: int, table: Array, source: Array, at: int, num_bytes: int, masks: Array, delta: Array) -> int:
    stride = (n + 63) // 64 * 8
    escapes = at + 4 * stride
    if num_bytes < escapes:
        return BAD_PARTS
    for i in range(0, n, 64):
        for j in range(4):
            masks[j] = load_word(source, at + j * stride + i // 8)
        store_bits(delta, i, masks, 4)
        store_lookup(delta, i, table, 15)
        escaped = masks[0] & masks[1] & masks[2] & masks[3] & active_mask(n - i)
        if escapes + popcount(escaped) > num_bytes:
            return BAD_PARTS
        escapes = _take_escapes(delta, i, escaped, source, escapes)
    return OK if num_bytes == padded_bytes(escapes) else BAD_PARTS


@njit(nogil=True)
def _take_escapes(delta: Array, at: int, escaped: Word, source: Array, escapes: int) -> int:
    """Put escaped deltas in their places; returns where the next one lies."""
    while escaped:
        delta[at + lowest_bit(escaped)] = source[escapes]
        escapes += 1
        escaped &= escaped - ONE
    return escapes


@njit(nogil=True)
def _count_passed(source: Array, low_at: int, high_at: int, count: int) -> int:
    """How many of `count` codes of a level are 3: those elements have a code in the next level."""
    passed = 0
    for i in range(0, count, 64):
        both = load_word(source, low_at + i // 8) & load_word(source, high_at + i // 8)
        passed += popcount(both & active_mask(count - i))
    return passed


@njit(nogil=True)
def _bits_at(source: Array, plane_at: int, index: int) -> Word:
    """64 bits of a plane from bit `index` on."""
    at, shift = plane_at + (index >> 3), U64(index & 7)
    above = U64(source[at + 8]) << ONE
    return load_word(source, at) >> shift | above << (U64(63) - shift)


@njit(nogil=True)
def _deltas_of_pairs(n: int, table: Array, source: Array, at: int, num_bytes: int, masks: Array, delta: Array) -> int:
    plane = (n + 63) // 64 * 8
    low0, high0, low1 = at, at + plane, at + 2 * plane
    if num_bytes < low1:
        return BAD_PARTS
    n1 = _count_passed(source, low0, high0, n)
    high1 = low1 + (n1 + 7) // 8
    low2 = high1 + (n1 + 7) // 8
    if num_bytes < low2:
        return BAD_PARTS
    n2 = _count_passed(source, low1, high1, n1)
    high2 = low2 + (n2 + 7) // 8
    low3 = high2 + (n2 + 7) // 8
    if num_bytes < low3:
        return BAD_PARTS
    n3 = _count_passed(source, low2, high2, n2)
    high3 = low3 + (n3 + 7) // 8
    escapes = high3 + (n3 + 7) // 8
    if num_bytes < escapes:
        return BAD_PARTS
    if num_bytes != padded_bytes(escapes + _count_passed(source, low3, high3, n3)):
        return BAD_PARTS
    n1 = n2 = n3 = 0
    for i in range(0, n, 64):
        low, high = load_word(source, low0 + i // 8), load_word(source, high0 + i // 8)
        on = low & high & active_mask(n - i)
        masks[1], masks[2] = low & ~high, high & ~low
        low, high = spread_bits(_bits_at(source, low1, n1), on), spread_bits(_bits_at(source, high1, n1), on)
        masks[3], masks[4], masks[5] = on, low, high
        n1 += popcount(on)
        on = low & high
        low, high = spread_bits(_bits_at(source, low2, n2), on), spread_bits(_bits_at(source, high2, n2), on)
        masks[6], masks[7], masks[8] = on, low, high
        n2 += popcount(on)
        on = low & high
        if on == ZERO:
            store_choice(delta, i, masks, table, 9)
            continue
        low, high = spread_bits(_bits_at(source, low3, n3), on), spread_bits(_bits_at(source, high3, n3), on)
        masks[9], masks[10], masks[11] = on, low, high
        n3 += popcount(on)
        store_choice(delta, i, masks, table, 12)
        escapes = _take_escapes(delta, i, low & high, source, escapes)
    return OK
