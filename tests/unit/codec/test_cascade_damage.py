"""Damaged cascade streams are refused with an error that names the fault."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from pdkv_connector.codec.cascade import Cascade
from pdkv_connector.codec.cascade_format import DTYPES, Section
from pdkv_connector.errors import LayoutError, ProtocolError
from tests.unit.codec import spec_codec as spec
from tests.unit.codec.cascade_cases import Bytes, any_bits, constant, decode, normal, plainly, slab

SHAPE = [Section(DTYPES["bfloat16"], 3, 40, 8), Section(DTYPES["float8_e5m2"], 2, 20, 9)]
NUM_BLOCKS = 5
DIRECTORY_AT = 32 + 16 * len(SHAPE)
CODECS = {width: Cascade(width) for width in (2, 4)}
THREADED = {width: Cascade(width, 3) for width in (2, 4)}
widths = pytest.mark.parametrize("width", [2, 4])
Damage = Callable[[bytearray], None]


def good(width: int) -> tuple[bytes, bytes]:
    """A slab with blocks of each kind, and its stream."""
    rng = np.random.default_rng(1)
    patterns = (normal, constant, any_bits, constant, normal)
    singles = [Section(s.numbers, 1, s.num_tokens, s.num_dims) for s in SHAPE for _ in range(s.num_segments)]
    parts = [slab(rng, [single], [pattern]) for single, pattern in zip(singles, patterns, strict=True)]
    raw = np.concatenate(parts).tobytes()
    stream = spec.encode(raw, plainly(SHAPE), width)
    kinds = [place.kind for place in spec.places(stream, plainly(SHAPE))]
    assert kinds[:4] == [spec.CODED, spec.CONSTANT, spec.STORED, spec.CONSTANT]
    return raw, stream


def attempt(width: int, stream: bytes | bytearray) -> Bytes:
    return decode(CODECS[width], np.frombuffer(bytes(stream), np.uint8).copy(), SHAPE)


@widths
def test_the_undamaged_stream(width: int) -> None:
    raw, stream = good(width)
    assert attempt(width, stream).tobytes() == raw
    assert attempt(width, spec.with_check(stream)).tobytes() == raw


@widths
def test_every_corrupted_byte_is_found(width: int) -> None:
    _, stream = good(width)
    for at in range(len(stream)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255, 90):
            damaged = bytearray(stream)
            damaged[at] ^= flip
            with pytest.raises(ProtocolError):
                attempt(width, damaged)


@widths
def test_every_corrupted_byte_whose_check_was_made_again(width: int) -> None:
    """It is refused, or decoded to some slab, and nothing beside that is written."""
    raw, stream = good(width)
    ends = {"refused": 0, "right": 0, "wrong": 0}
    for at in range(len(stream)):
        for flip in (1, 16, 128, 255):
            damaged = bytearray(stream)
            damaged[at] ^= flip
            try:
                slab_bytes = attempt(width, spec.with_check(bytes(damaged))).tobytes()
            except ProtocolError:
                ends["refused"] += 1
            else:
                ends["right" if slab_bytes == raw else "wrong"] += 1
                assert at in range(24, 28) or at >= DIRECTORY_AT, "header and sections are known before"
    assert min(ends.values()) > 0
    assert sum(ends.values()) == 4 * len(stream)


@widths
def test_every_length(width: int) -> None:
    raw, stream = good(width)
    for size in range(len(raw) + 100):
        if size in {len(stream), len(raw)}:
            continue
        with pytest.raises(ProtocolError, match=f"coded slab of {size} bytes|in its header"):
            attempt(width, (stream + bytes(len(raw)))[:size])


HEADER_FIELDS = {"magic": 0, "version": 4, "width": 5, "levels": 6, "zero": 7, "block": 8, "sections": 12, "blocks": 16,
                 "length": 20, "reserved": 28}  # fmt: skip
SECTION_FIELDS = {"bytes": 0, "exponent": 1, "mantissa": 2, "zero": 3, "segments": 4, "tokens": 8, "dims": 12,
                  "channels": 14}  # fmt: skip


@widths
@pytest.mark.parametrize("at", [*HEADER_FIELDS.values(), *(32 + at for at in SECTION_FIELDS.values()), 48 + 12])
@pytest.mark.parametrize("delta", [1, 255])
def test_every_field_of_header_and_sections(width: int, at: int, delta: int) -> None:
    _, stream = good(width)
    damaged = bytearray(stream)
    damaged[at] = (damaged[at] + delta) % 256
    with pytest.raises(ProtocolError, match=r"in its header|sections"):
        attempt(width, spec.with_check(bytes(damaged)))


def entry(data: bytearray, index: int, delta: int) -> None:
    at = DIRECTORY_AT + 2 * index
    struct.pack_into("<H", data, at, struct.unpack_from("<H", data, at)[0] + delta)


def one(index: int, delta: int) -> Damage:
    """Add `delta` to directory entry `index`."""
    return lambda data: entry(data, index, delta)


def move(index: int, units: int) -> Damage:
    """Give `units` of 8 bytes of the next block to block `index`."""

    def damage(data: bytearray) -> None:
        entry(data, index, units)
        entry(data, index + 1, -units)

    return damage


DIRECTORY: dict[str, tuple[Damage, str]] = {
    "a byte of garbage behind a block": (one(0, 1), "blocks up to byte"),
    "one block too short": (one(2, -1), "blocks up to byte"),
    "kind 3": (one(1, 1 << 14), "unknown kind"),
    "a coded block that is said to be stored": (one(0, 1 << 14), "length cannot be"),
    "a coded block that is said to be constant": (one(0, 2 << 14), "length cannot be"),
    "a stored block that is said to be coded": (one(2, -1 << 14), "parts do not add up"),
    "a constant block that is said to be coded": (one(3, -2 << 14), "parts do not add up"),
    "a constant block that is said to be stored": (one(1, -1 << 14), "length cannot be"),
    "a coded block that takes from the next": (move(0, 1), "parts do not add up"),
    "a coded block that gives to the next": (move(0, -1), "parts do not add up"),
    "a constant block that takes from the next": (move(1, 1), "length cannot be"),
    "a stored block that takes from the next": (move(2, 1), "length cannot be"),
    "a constant block of no bytes": (move(1, -1), "length cannot be"),
}


@widths
@pytest.mark.parametrize("name", DIRECTORY)
def test_directory_entries(width: int, name: str) -> None:
    _, stream = good(width)
    damage, message = DIRECTORY[name]
    damaged = bytearray(stream)
    damage(damaged)
    for codecs in (CODECS, THREADED):
        data = np.frombuffer(spec.with_check(bytes(damaged)), np.uint8).copy()
        with pytest.raises(ProtocolError, match=message):
            decode(codecs[width], data, SHAPE)


@widths
def test_a_block_longer_than_any_can_be(width: int) -> None:
    section = Section(DTYPES["float32"], 1, 64, 64)
    raw = slab(np.random.default_rng(2), [section], [any_bits])
    stream = bytearray(spec.encode_stream(raw.tobytes(), plainly([section]), width) + bytes(8))
    struct.pack_into("<I", stream, 20, len(stream))
    struct.pack_into("<H", stream, 48, struct.unpack_from("<H", stream, 48)[0] + 1)
    with pytest.raises(ProtocolError, match="length cannot be"):
        decode(CODECS[width], np.frombuffer(spec.with_check(bytes(stream)), np.uint8).copy(), [section])


@widths
def test_a_stream_of_another_codec_or_shape(width: int) -> None:
    _, stream = good(width)
    data = np.frombuffer(stream, np.uint8).copy()
    with pytest.raises(ProtocolError, match=r"in its header|sections"):
        decode(CODECS[6 - width], data, SHAPE)
    with pytest.raises(ProtocolError, match=r"in its header|sections"):
        decode(CODECS[width], data, [Section(DTYPES["float16"], 3, 40, 8), SHAPE[1]])


def test_a_head_size_that_no_header_holds_is_named() -> None:
    with pytest.raises(LayoutError, match="head size 65536 has no coded form, at most 65535"):
        Section(DTYPES["bfloat16"], 1, 1, 65536)
