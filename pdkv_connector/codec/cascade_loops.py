"""Loops over the segments of one section of a cascade stream, and the check over all of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from pdkv_connector.codec.cascade_decode import OK, decode_segment
from pdkv_connector.codec.cascade_encode import encode_segment
from pdkv_connector.codec.cascade_format import UNIT_BYTES
from pdkv_connector.codec.cascade_table import build_table
from pdkv_connector.codec.simd import Array

CHECK_WORD = 6
"""Index of the header's check among its 32-bit words; it counts as zero."""


def _sources() -> int:
    """A number that changes with any file these loops are compiled from."""
    names = ("simd", "simd_elements", "cascade_format", "cascade_workspace", "cascade_table",
             "cascade_encode", "cascade_decode")  # fmt: skip
    texts = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in names]
    return int.from_bytes(hashlib.sha256(b"".join(texts)).digest()[:7], "little")


def _encoder(sources: int) -> Any:
    """numba's cache knows a function by its own file and the variables it closes over, not by what it calls.

    `sources` closes over the rest: code compiled from other files of an older release must never be run.
    """

    @njit(nogil=True, cache=True)
    def encode_segments(
        elements: Array, shape: tuple[int, int, int], numbers: tuple[int, int], width: int,
        directory: Array, tables: Array, out: Array, at: int, work: Any,
    ) -> int:  # fmt: skip
        """Code consecutive segments into `out` from byte `at` on; returns where they end, or -1 when they do not fit.

        elements: the segments, one after another. shape: (tokens, dims, channels). directory, tables: theirs alone.
        """
        assert sources != 0
        num_elements = shape[0] * shape[1]
        num_segments = elements.size // num_elements
        num_blocks, table_bytes = directory.size // num_segments, tables.size // num_segments
        for s in range(num_segments):
            segment = elements[s * num_elements : (s + 1) * num_elements]
            table = tables[s * table_bytes : (s + 1) * table_bytes]
            entries = directory[s * num_blocks : (s + 1) * num_blocks]
            build_table(segment, shape, numbers, table, work)
            at = encode_segment(segment, shape[1], numbers, width, table, entries, out, at, work)
            if at < 0:
                return -1
        return at

    return encode_segments


def _decoder(sources: int) -> Any:
    @njit(nogil=True, cache=True)
    def decode_segments(
        elements: Array, shape: tuple[int, int, int], numbers: tuple[int, int], width: int,
        directory: Array, tables: Array, stream: Array, at: int, work: Any,
    ) -> tuple[int, int]:  # fmt: skip
        """The inverse; returns (where the segments' blocks end, fault), a fault as `cascade_decode` numbers them."""
        assert sources != 0
        num_elements = shape[0] * shape[1]
        num_segments = elements.size // num_elements
        num_blocks, table_bytes = directory.size // num_segments, tables.size // num_segments
        fault = OK
        for s in range(num_segments):
            segment = elements[s * num_elements : (s + 1) * num_elements]
            table = tables[s * table_bytes : (s + 1) * table_bytes]
            entries = directory[s * num_blocks : (s + 1) * num_blocks]
            at, fault = decode_segment(segment, shape[1], numbers, width, table, entries, stream, at, work)
            if fault != OK:
                return at, fault
        return at, OK

    return decode_segments


encode_segments = _encoder(_sources())
decode_segments = _decoder(_sources())


@njit(nogil=True, cache=True)
def blocks_end(directory: Array, at: int) -> int:
    """Where the blocks of `directory` end when the first begins at byte `at`."""
    units: Any = 0
    for index in range(directory.size):
        units += np.int64(directory[index]) & 0x3FFF
    end: int = at + units * UNIT_BYTES
    return end


@njit(nogil=True, cache=True)
def check_of(words: Array) -> Any:
    """Sum of all uint32 words but the check, each times an odd number of its own, modulo 2^32.

    An odd factor has an inverse, so one changed word always changes the sum; several do all but once in 2^32.
    """
    total: Any = np.uint32(0)
    for i in range(words.size):
        total += words[i] * ((np.uint32(2) * np.uint32(i) + np.uint32(1)) * np.uint32(0x9E3779B1))
    factor = np.uint32(2 * CHECK_WORD + 1) * np.uint32(0x9E3779B1)
    return np.uint32(total - words[CHECK_WORD] * factor)
