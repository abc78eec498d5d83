"""The cascade stream, written from the text of kernels/README.md alone: slow, plain, apart from the codec it checks."""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
BLOCK = 4096
CODED, STORED, CONSTANT = 0, 1, 2
LEVELS = {2: 4, 4: 1}


class Section(NamedTuple):
    """Consecutive segments of one element type and size."""

    element_bytes: int
    exponent_bits: int
    mantissa_bits: int
    num_segments: int
    num_tokens: int
    num_dims: int

    @property
    def num_channels(self) -> int:
        return 1 if self.num_tokens < 32 else self.num_dims

    @property
    def num_elements(self) -> int:
        return self.num_tokens * self.num_dims

    def pack(self) -> bytes:
        return struct.pack("<4BIIHH", *self[:3], 0, *self[3:], self.num_channels)


class Place(NamedTuple):
    """Where a block and its segment's table lie in a stream, and which elements of the segment it holds."""

    section: Section
    table: int
    kind: int
    start: int
    num_bytes: int
    first: int
    num_elements: int


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def with_check(stream: bytes) -> bytes:
    """The stream with the check that belongs to it."""
    words = list(struct.unpack(f"<{len(stream) // 4}I", stream))
    words[6] = 0
    words[6] = sum(word * (2 * i + 1) * 0x9E3779B1 for i, word in enumerate(words)) % 2**32
    return struct.pack(f"<{len(words)}I", *words)


def bit_planes(values: Ints, num_bits: int, size: int) -> bytes:
    bits = np.zeros((num_bits, size), np.uint8)
    bits[:, : values.size] = (values >> np.arange(num_bits)[:, None]) & 1
    return np.packbits(bits, axis=1, bitorder="little").tobytes()


def to_bytes(elements: Ints, section: Section) -> bytes:
    return bytes(elements.astype(f"<u{section.element_bytes}").data)


def exponents(elements: Ints, section: Section) -> Ints:
    return np.asarray((elements >> section.mantissa_bits) % (1 << section.exponent_bits))


def bases_of(table: bytes, section: Section, first: int, num_elements: int) -> Ints:
    """The base of each element of a block."""
    bases = np.frombuffer(table, np.uint8, section.num_channels, 16).astype(np.int64)
    return np.asarray(bases[(first + np.arange(num_elements)) % section.num_channels])


def coded(elements: Ints, first: int, table: bytes, section: Section, width: int) -> bytes:
    n, size, low_bytes, m_bits = elements.size, -(-elements.size // 64) * 64, section[0] - 1, section.mantissa_bits
    rest = elements % 2**m_bits | (elements >> 8 * section.element_bytes - 1) << m_bits
    parts = [(rest >> 8 * byte).astype(np.uint8).tobytes() + bytes(size - n) for byte in range(low_bytes)]
    parts.append(bit_planes(rest >> 8 * low_bytes, m_bits + 1 - 8 * low_bytes, size))
    deltas = (exponents(elements, section) - bases_of(table, section, first, n)) % 256
    codebook, symbols = np.frombuffer(table, np.uint8, 16), 2**width - 1
    for level in range(LEVELS[width]):
        codes = np.full(deltas.size, symbols)
        for k in range(symbols):
            codes[deltas == codebook[level * symbols + k]] = k
        parts.append(bit_planes(codes, width, size if level == 0 else deltas.size))
        deltas = deltas[codes == symbols]
    return padded(b"".join(parts) + deltas.astype(np.uint8).tobytes())


def encode_block(elements: Ints, first: int, table: bytes, section: Section, width: int) -> tuple[int, bytes]:
    """Kind and bytes of one block."""
    raw = to_bytes(elements, section)
    if (elements == elements[0]).all():
        return CONSTANT, padded(raw[: section.element_bytes])
    code = coded(elements, first, table, section, width)
    return (CODED, code) if len(code) < len(padded(raw)) else (STORED, padded(raw))


def decode_block(place: Place, data: bytes, table: bytes, width: int, levels: int) -> bytes:
    """The elements of one block: from its own bytes and its segment's table, nothing else."""
    section, n, size, at = place.section, place.num_elements, -(-place.num_elements // 64) * 64, 0
    low_bytes, m_bits, symbols = section[0] - 1, section.mantissa_bits, 2**width - 1
    if place.kind != CODED:
        return data[: n * section.element_bytes] if place.kind == STORED else data[: section.element_bytes] * n

    def planes(num_bits: int, plane_elements: int, count: int) -> Ints:
        nonlocal at
        rows = np.frombuffer(data, np.uint8, num_bits * -(-plane_elements // 8), at).reshape(num_bits, -1)
        at += rows.size
        bits = np.unpackbits(rows, axis=1, bitorder="little")[:, :count].astype(np.int64)
        return np.asarray((bits << np.arange(num_bits)[:, None]).sum(axis=0))

    rest = np.zeros(n, np.int64)
    for byte in range(low_bytes):
        rest |= np.frombuffer(data, np.uint8, n, at).astype(np.int64) << 8 * byte
        at += size
    if m_bits + 1 > 8 * low_bytes:
        rest |= planes(m_bits + 1 - 8 * low_bytes, size, n) << 8 * low_bytes
    codebook, deltas, passing = np.frombuffer(table, np.uint8, 16), np.zeros(n, np.int64), np.arange(n)
    for level in range(levels):
        codes = planes(width, size if level == 0 else passing.size, passing.size)
        ended = codes < symbols
        deltas[passing[ended]] = codebook[level * symbols + codes[ended]]
        passing = passing[~ended]
    deltas[passing] = np.frombuffer(data, np.uint8, passing.size, at)
    exponent = (deltas + bases_of(table, section, place.first, n)) % (1 << section.exponent_bits)
    elements = (rest >> m_bits) << (8 * section.element_bytes - 1) | exponent << m_bits | rest % 2**m_bits
    return to_bytes(elements, section)


def choose_table(elements: Ints, section: Section) -> bytes:
    """Codebook and bases, as the project's encoders choose them."""
    sample = exponents(elements, section).reshape(section.num_tokens, section.num_dims)
    sample = sample[:: -(-section.num_tokens // 256)]
    per_channel = sample.reshape(-1, section.num_channels)
    bases = per_channel.sum(axis=0) // per_channel.shape[0]
    deltas = (sample[::4] - bases) % 256
    counts = {delta: int((deltas == delta % 256).sum()) for delta in range(-16, 16)}
    codebook = sorted(counts, key=lambda delta: (-counts[delta], delta))[:16]
    return struct.pack("16b", *codebook) + bytes(int(base) for base in bases)


def segments(raw: bytes, sections: Sequence[Section]) -> Iterator[tuple[Section, Ints]]:
    at = 0
    for section in sections:
        for _ in range(section.num_segments):
            elements = np.frombuffer(raw, f"<u{section.element_bytes}", section.num_elements, at)
            yield section, elements.astype(np.int64)
            at += section.num_elements * section.element_bytes


def encode_stream(raw: bytes, sections: Sequence[Section], width: int) -> bytes:
    """The stream, also where the slab itself would be shorter."""
    directory, tables, blocks = b"", b"", b""
    for section, elements in segments(raw, sections):
        table = choose_table(elements, section)
        tables += table
        for first in range(0, elements.size, BLOCK):
            kind, data = encode_block(elements[first : first + BLOCK], first, table, section, width)
            directory += struct.pack("<H", kind << 14 | len(data) // 8)
            blocks += data
    body = b"".join(section.pack() for section in sections) + padded(directory) + padded(tables) + blocks
    counts = (len(sections), len(directory) // 2, 32 + len(body))
    return with_check(struct.pack("<4s4B6I", b"PDKV", 1, width, LEVELS[width], 0, BLOCK, *counts, 0, 0) + body)


def encode(raw: bytes, sections: Sequence[Section], width: int) -> bytes:
    return min(raw, encode_stream(raw, sections, width), key=len)


def places(stream: bytes, sections: Sequence[Section]) -> Iterator[Place]:
    num_blocks, entry = struct.unpack_from("<I", stream, 16)[0], 32 + 16 * len(sections)
    table = entry + -(-num_blocks // 4) * 8
    start = table + -(-sum(s.num_segments * (16 + s.num_channels) for s in sections) // 8) * 8
    for section in (s for s in sections for _ in range(s.num_segments)):
        for first in range(0, section.num_elements, BLOCK):
            kind, num_bytes = divmod(struct.unpack_from("<H", stream, entry)[0], 2**14)
            n = min(BLOCK, section.num_elements - first)
            yield Place(section, table, kind, start, 8 * num_bytes, first, n)
            entry, start = entry + 2, start + 8 * num_bytes
        table += 16 + section.num_channels


def decode(payload: bytes, sections: Sequence[Section]) -> bytes:
    """The slab of a payload that an encoder made; a stream whose check does not fit is a ValueError."""
    if len(payload) == sum(s.num_segments * s.num_elements * s.element_bytes for s in sections):
        return payload
    if with_check(payload) != payload:
        raise ValueError("the stream does not pass its check")
    blocks = ((p, payload[p.start : p.start + p.num_bytes], payload[p.table :]) for p in places(payload, sections))
    return b"".join(decode_block(*block, *payload[5:7]) for block in blocks)
