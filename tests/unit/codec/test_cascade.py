"""Cascade streams: byte for byte those of a plain codec written from the specification, and decoded by either."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdkv_connector.codec.cascade import Cascade
from pdkv_connector.codec.cascade_format import DTYPES, Section
from pdkv_connector.errors import SlabTooLarge
from tests.unit.codec import spec_codec as spec
from tests.unit.codec.cascade_cases import (
    NAMES,
    PATTERNS,
    Bytes,
    any_bits,
    constant,
    decode,
    encode,
    normal,
    plainly,
    sections,
    slab,
    zeros,
)

WIDTHS = (2, 4)
ALONE = {width: Cascade(width) for width in WIDTHS}
TOGETHER = {width: Cascade(width, 3) for width in WIDTHS}
widths = pytest.mark.parametrize("width", WIDTHS)
names = pytest.mark.parametrize("name", NAMES)


def as_bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8).copy()


def all_values(name: str) -> tuple[Bytes, Section]:
    """Every bit pattern of a type, each equally often, in rows whose exponents stray from their dim's by a few or many.

    A token is a sign and a mantissa, a dim an exponent that each token turns by a number of places.
    """
    numbers = DTYPES[name]
    num_exponents, num_rests = 1 << numbers.exponent_bits, 2 << numbers.mantissa_bits
    repeats = -(-256 // num_rests)
    turns = np.random.default_rng(5).geometric(0.5, num_rests * repeats) - 1
    turns[::37] = num_exponents // 2
    rests = np.tile(np.arange(num_rests), repeats)
    exponents = (np.arange(num_exponents) - turns[:, None]) % num_exponents
    mantissas, signs = rests % (num_rests // 2), rests // (num_rests // 2)
    elements = exponents << numbers.mantissa_bits | (mantissas | signs << (8 * numbers.elem_bytes - 1))[:, None]
    raw = elements.astype(f"<u{numbers.elem_bytes}").reshape(-1)
    assert np.unique(raw, return_counts=True)[1].tolist() == [repeats] * (num_exponents * num_rests)
    return raw.view(np.uint8), Section(numbers, 1, num_rests * repeats, num_exponents)


@widths
@settings(max_examples=150)
@given(data=st.data())
def test_streams_are_those_of_the_specification(width: int, data: st.DataObject) -> None:
    shape, seed = data.draw(sections()), data.draw(st.integers(0, 2**32 - 1))
    patterns = data.draw(st.lists(st.sampled_from(PATTERNS), min_size=1, unique=True))
    raw = slab(np.random.default_rng(seed), shape, patterns)
    expected = spec.encode(raw.tobytes(), plainly(shape), width)
    for codec in (ALONE[width], TOGETHER[width]):
        payload = encode(codec, raw, shape)
        assert payload.tobytes() == expected
        assert len(payload) <= len(raw)
        assert spec.decode(payload.tobytes(), plainly(shape)) == raw.tobytes()
        assert decode(codec, as_bytes(expected), shape).tobytes() == raw.tobytes()


@widths
@names
def test_one_flipped_bit_of_a_slab_gives_another_stream(width: int, name: str) -> None:
    shape = [Section(DTYPES[name], 1, 40, 24)]
    raw = slab(np.random.default_rng(1), shape, [normal])
    before = encode(ALONE[width], raw, shape)
    raw[777] ^= 1
    assert encode(ALONE[width], raw, shape).tobytes() != before.tobytes()


@widths
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_every_value_of_a_type(width: int, name: str) -> None:
    raw, section = all_values(name)
    payload = encode(ALONE[width], raw, [section])
    assert decode(ALONE[width], payload, [section]).tobytes() == raw.tobytes()
    assert payload.tobytes() == spec.encode(raw.tobytes(), plainly([section]), width)
    kinds = {place.kind for place in spec.places(payload.tobytes(), plainly([section]))}
    pays = not (width == 4 and name == "float8_e4m3fn")  # 4 bits of 8 are exponent: a code of 4 saves nothing
    assert (len(payload) < len(raw) and kinds == {spec.CODED}) if pays else payload.tobytes() == raw.tobytes()


@widths
@settings(max_examples=60)
@given(data=st.data())
def test_decoders_take_any_table(width: int, data: st.DataObject) -> None:
    """Codebooks with repeats, bases of any value, and blocks coded although that does not pay."""
    section = Section(DTYPES[data.draw(st.sampled_from(NAMES))], 2, data.draw(st.integers(1, 70)), 41)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    raw = slab(rng, [section], [normal])

    def any_table(elements: spec.Ints, shape: spec.Section) -> bytes:
        bases = np.clip(spec.exponents(elements, shape)[: shape.num_channels] + rng.integers(-4, 5), 0, 255)
        return rng.integers(-4, 5, 16, np.int8).tobytes() + bases.astype(np.uint8).tobytes()

    def always_coded(elements: spec.Ints, *rest: object) -> tuple[int, bytes]:
        return spec.CODED, spec.coded(elements, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec, "choose_table", any_table)
        patch.setattr(spec, "encode_block", always_coded)
        stream = spec.encode_stream(raw.tobytes(), plainly([section]), width)
    if len(stream) != len(raw):
        assert decode(ALONE[width], as_bytes(stream), [section]).tobytes() == raw.tobytes()


@widths
@names
@pytest.mark.parametrize("num_dims", [1, 7, 128])
@pytest.mark.parametrize("num_tokens", [1, 31, 32, 500])
def test_noise_travels_as_it_is(width: int, name: str, num_tokens: int, num_dims: int) -> None:
    shape = [Section(DTYPES[name], 3, num_tokens, num_dims)]
    raw = slab(np.random.default_rng(2), shape, [any_bits])
    for codec in (ALONE[width], TOGETHER[width]):
        assert encode(codec, raw, shape).tobytes() == raw.tobytes()


@widths
@names
@pytest.mark.parametrize("pattern", [constant, zeros])
def test_constant_blocks_take_eight_bytes(width: int, name: str, pattern: object) -> None:
    shape = [Section(DTYPES[name], 5, 300, 96)]
    raw = slab(np.random.default_rng(3), shape, [pattern])  # type: ignore[list-item]
    payload = encode(ALONE[width], raw, shape)
    num_blocks, table_bytes = 5 * 8, 5 * (16 + 96)
    assert len(payload) == 32 + 16 + 2 * num_blocks + table_bytes + 8 * num_blocks
    assert decode(ALONE[width], payload, shape).tobytes() == raw.tobytes()


@widths
def test_a_stream_as_long_as_its_slab_is_not_sent(width: int) -> None:
    """It would be taken for the slab. Here five constant blocks of 48 bytes save the 200 that all else costs."""
    one = Section(DTYPES["float8_e4m3fn"], 1, 1, 48)
    rng = np.random.default_rng(12)
    raw = np.concatenate([slab(rng, [one], [constant if i < 5 else any_bits]) for i in range(8)])
    shape = [Section(one.numbers, 8, 1, 48)]
    assert len(spec.encode_stream(raw.tobytes(), plainly(shape), width)) == len(raw)
    for codec in (ALONE[width], TOGETHER[width]):
        assert encode(codec, raw, shape, len(raw) + 100).tobytes() == raw.tobytes()


@widths
def test_adversary_of_every_block(width: int) -> None:
    """Tokens that the table is made from say zero, all others are noise: what is counted is not what comes."""
    section = Section(DTYPES["bfloat16"], 2, 1024, 64)
    rng = np.random.default_rng(4)
    elements = rng.integers(0, 1 << 16, (2, 1024, 64))
    elements[:, :: 1024 // 256] = 0
    raw = elements.astype("<u2").reshape(-1).view(np.uint8)
    payload = encode(ALONE[width], raw, [section])
    assert payload.tobytes() == spec.encode(raw.tobytes(), plainly([section]), width)
    assert len(payload) <= len(raw)


@widths
def test_a_block_is_decoded_from_its_bytes_and_its_table(width: int) -> None:
    shape = [Section(DTYPES["bfloat16"], 3, 130, 96), Section(DTYPES["float16"], 1, 20, 300)]
    raw = slab(np.random.default_rng(6), shape, [normal])
    stream = encode(ALONE[width], raw, shape).tobytes()
    places = list(spec.places(stream, plainly(shape)))
    assert {place.kind for place in places} == {spec.CODED}
    assert len(places) == 3 * 4 + 2
    starts = np.cumsum([0, *(place.num_elements * place.section.element_bytes for place in places)])
    for index in np.random.default_rng(7).permutation(len(places)):
        place = places[index]
        data = stream[place.start : place.start + place.num_bytes]
        table = stream[place.table : place.table + 16 + place.section.num_channels]
        elements = raw[starts[index] : starts[index + 1]].tobytes()
        assert spec.decode_block(place, data, table, *stream[5:7]) == elements
        assert spec.decode_block(place, data, bytes(16) + table[16:], *stream[5:7]) != elements


@widths
@pytest.mark.parametrize("codecs", [ALONE, TOGETHER])
def test_a_buffer_too_small(width: int, codecs: dict[int, Cascade]) -> None:
    shape = [Section(DTYPES["bfloat16"], 4, 80, 48), Section(DTYPES["float8_e5m2"], 1, 40, 48)]
    raw = slab(np.random.default_rng(8), shape, [normal, constant])
    payload = encode(codecs[width], raw, shape)
    assert encode(codecs[width], raw, shape, len(payload)).tobytes() == payload.tobytes()
    for out_bytes in (len(payload) - 1, len(payload) - 8, len(payload) // 2, 100, 31, 1, 0):
        with pytest.raises(SlabTooLarge, match=f"{len(raw)} bytes does not fit {out_bytes} bytes"):
            encode(codecs[width], raw, shape, out_bytes)


@widths
@names
def test_buffers_at_any_address(width: int, name: str) -> None:
    shape = [Section(DTYPES["float8_e5m2"], 1, 35, 3), Section(DTYPES[name], 2, 70, 33)]
    content = slab(np.random.default_rng(13), shape, [normal])
    expected = spec.encode(content.tobytes(), plainly(shape), width)
    for offset in (1, 2, 3):
        raw, out, back = (np.zeros(offset + content.size, np.uint8)[offset:] for _ in range(3))
        raw[:] = content
        payload = out[: ALONE[width].encode(raw, shape, out)]
        assert payload.tobytes() == expected
        ALONE[width].decode(payload, shape, back)
        assert back.tobytes() == content.tobytes()


@widths
def test_noise_needs_a_buffer_of_its_size(width: int) -> None:
    shape = [Section(DTYPES["float32"], 1, 50, 16)]
    raw = slab(np.random.default_rng(9), shape, [any_bits])
    assert encode(ALONE[width], raw, shape, len(raw) + 500).tobytes() == raw.tobytes()
    with pytest.raises(SlabTooLarge):
        encode(ALONE[width], raw, shape, len(raw) - 1)


@widths
def test_nothing_is_nothing(width: int) -> None:
    empty = [Section(DTYPES["bfloat16"], 3, 0, 64)]
    for shape in ([], empty):
        assert encode(ALONE[width], np.zeros(0, np.uint8), shape, 100).size == 0
        assert decode(ALONE[width], np.zeros(0, np.uint8), shape).size == 0


@widths
def test_empty_sections_leave_no_trace(width: int) -> None:
    full, empty = Section(DTYPES["bfloat16"], 1, 64, 64), Section(DTYPES["float16"], 2, 0, 64)
    raw = slab(np.random.default_rng(10), [full, full], [normal])
    payload = encode(ALONE[width], raw, [empty, full, empty, full])
    assert payload.tobytes() == encode(ALONE[width], raw, [Section(full.numbers, 2, 64, 64)]).tobytes()


def test_threads_leave_the_buffer_when_encoding_gives_up() -> None:
    """Coding is given up when the first part fills the buffer, while others are still being made.

    No thread may write into the slab that then takes the stream's place.
    """
    shape = [Section(DTYPES["float8_e4m3fn"], 40_000, 32, 1), Section(DTYPES["float8_e5m2"], 60_000, 32, 1)]
    raw = slab(np.random.default_rng(11), [Section(DTYPES["float8_e4m3fn"], 1, 100_000, 32)], [any_bits])
    for _ in range(3):
        assert encode(TOGETHER[2], raw, shape).tobytes() == raw.tobytes()
