"""Mutated streams against the CPU decoder, and random slabs against the encoder, in fenced memory.

    python -m tests.unit.codec.fuzz_cascade --decodes 100000 --encodes 1000 --seed 1

Input, output and every scratch array end at a page that nobody may touch. Prints the seed, then as JSON how each ended;
an access out of bounds ends the process, anything but ProtocolError and SlabTooLarge is an uncaught error.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pdkv_connector.codec import cascade
from pdkv_connector.codec.cascade import Cascade
from pdkv_connector.codec.cascade_format import DTYPES, Section
from pdkv_connector.errors import ProtocolError, SlabTooLarge
from tests.unit.codec import spec_codec as spec
from tests.unit.codec.cascade_cases import NAMES, PATTERNS, any_bits, constant, normal, plainly, slab
from tests.unit.codec.fence import Fence

FAULTS = (
    "multiple of 8",
    "shorter than",
    "in its header",
    "sections",
    "check",
    "blocks up to",
    "unknown kind",
    "parts",
    "length cannot",
)
Rng = np.random.Generator


class Base(NamedTuple):
    """A good stream, to be damaged: codec, shape, slab, and where directory, tables, blocks and all of it end."""

    width: int
    sections: Sequence[Section]
    raw: bytes
    stream: bytes
    ends: tuple[int, int, int, int]


def bases(rng: Rng) -> list[Base]:
    shapes = [[Section(DTYPES[name], 3, 40, 8)] for name in NAMES]
    shapes.append([Section(DTYPES["bfloat16"], 2, 70, 5), Section(DTYPES["float8_e5m2"], 1, 20, 9)])
    shapes.append([Section(DTYPES["float16"], 1, 70, 96)])
    return [base(rng, width, shape) for width in (2, 4) for shape in shapes]


def large_bases(rng: Rng) -> list[Base]:
    """Streams longer than a decoder's scratch."""
    return [base(rng, width, [Section(DTYPES["float32"], 1, 64, 256)]) for width in (2, 4)]


def base(rng: Rng, width: int, sections: Sequence[Section]) -> Base:
    """One segment of each kind of block, if there are three."""
    singles = [Section(s.numbers, 1, s.num_tokens, s.num_dims) for s in sections for _ in range(s.num_segments)]
    patterns = (normal, constant, any_bits)
    parts = [slab(rng, [single], [patterns[i % 3]]) for i, single in enumerate(singles)]
    raw = np.concatenate(parts).tobytes()
    stream = spec.encode_stream(raw, plainly(sections), width)
    places = list(spec.places(stream, plainly(sections)))
    directory_at = 32 + 16 * len(sections)
    ends = (directory_at, directory_at + 2 * len(places), places[0].start, len(stream))
    return Base(width, sections, raw, stream, ends)


# ---- mutations: each changes `data` in place


def flip_bit(rng: Rng, data: bytearray, base: Base) -> None:
    """Anywhere in a part: parts are hit equally often, whatever their size."""
    part = int(rng.integers(4))
    at = int(rng.integers((0, *base.ends)[part], base.ends[part])) % max(1, len(data))
    if data:
        data[at] ^= 1 << int(rng.integers(8))


def set_bytes(rng: Rng, data: bytearray, base: Base) -> None:
    """A run of zeros, ones or noise in the blocks."""
    start = int(rng.integers(base.ends[1], base.ends[3]))
    count = min(int(rng.integers(1, 80)), len(data) - start)
    value = int(rng.choice([0, 255, -1]))
    for at in range(start, start + count):
        data[at] = value if value >= 0 else int(rng.integers(256))


def edit_entry(rng: Rng, data: bytearray, base: Base) -> None:
    """One directory entry: another kind, a length near or far; the next may make up for it."""
    entries = range(base.ends[0], min(base.ends[1], len(data) - 1), 2)
    if not entries:
        return
    at = entries[int(rng.integers(len(entries)))]
    (entry,) = struct.unpack_from("<H", data, at)
    delta = int(rng.choice([-2, -1, 1, 2, 1 << 14, 2 << 14, 3 << 14, int(rng.integers(1 << 16))]))
    struct.pack_into("<H", data, at, (entry + delta) % (1 << 16))
    if abs(delta) <= 2 and at + 2 in entries:
        (entry,) = struct.unpack_from("<H", data, at + 2)
        struct.pack_into("<H", data, at + 2, (entry - delta) % (1 << 16))


def hoard(rng: Rng, data: bytearray, base: Base) -> None:
    """One block takes all that some blocks behind it have: more than any block may, if there is as much."""
    entries = range(base.ends[0], min(base.ends[1], len(data) - 1), 2)
    if len(entries) < 2:
        return
    first, last = np.sort(rng.choice(len(entries), 2, replace=False))
    words = [struct.unpack_from("<H", data, at)[0] for at in entries]
    total = sum(word % (1 << 14) for word in words[first : last + 1])
    taken = min(total, (1 << 14) - 1)
    words[first : last + 1] = [words[first] >> 14 << 14 | taken, *[0] * (last - first - 1), min(total - taken, 16383)]
    struct.pack_into(f"<{len(words)}H", data, entries[0], *words)


def cut(rng: Rng, data: bytearray, base: Base) -> None:
    count = int(rng.choice([1, 8, 16, int(rng.integers(len(data) + 1)) & -8]))
    del data[max(0, len(data) - count) :]


def grow(rng: Rng, data: bytearray, base: Base) -> None:
    data += bytes(rng.integers(0, 256, int(rng.choice([1, 8, 64])), np.uint8))


def remove(rng: Rng, data: bytearray, base: Base) -> None:
    at = int(rng.integers(base.ends[0], base.ends[3])) // 8 * 8
    del data[at : at + 8 * int(rng.integers(1, 4))]


def edit_header(rng: Rng, data: bytearray, base: Base) -> None:
    at = int(rng.integers(base.ends[0] // 4)) * 4
    if at + 4 <= len(data):
        struct.pack_into("<I", data, at, int(rng.integers(1 << 32)))


MUTATIONS: tuple[Callable[[Rng, bytearray, Base], None], ...]
MUTATIONS = (*[flip_bit] * 5, *[set_bytes] * 6, *[edit_entry] * 4, *[hoard] * 2, cut, grow, remove, edit_header)


def mutate(rng: Rng, base: Base) -> bytes:
    data = bytearray(base.stream)
    for _ in range(int(rng.integers(1, 4))):
        MUTATIONS[int(rng.integers(len(MUTATIONS)))](rng, data, base)
    if len(data) >= 32 and rng.random() < 0.9:
        struct.pack_into("<I", data, 20, len(data))
    if len(data) >= 32 and len(data) % 4 == 0 and rng.random() < 0.9:
        return checked(bytes(data))
    return bytes(data)


def checked(stream: bytes) -> bytes:
    """The stream with the check it should have, as `spec.with_check`, but fast."""
    words = np.frombuffer(stream, "<u4").astype(np.uint64)
    words[6] = 0
    check = int((words * ((2 * np.arange(words.size, dtype=np.uint64) + 1) * 0x9E3779B1 % (1 << 32)) % (1 << 32)).sum())
    return stream[:24] + struct.pack("<I", check % (1 << 32)) + stream[28:]


# ---- runs


def fence_workspaces() -> None:
    """Let every scratch array end at a fence of its own."""

    def fenced(array: Any) -> Any:
        inside = Fence(array.nbytes).take(array.nbytes).view(array.dtype).reshape(array.shape)
        inside[:] = array
        return inside

    build = vars(cascade)["workspace"]

    def build_fenced(elem_bytes: int, num_dims: int) -> Any:
        plain = build(elem_bytes, num_dims)
        return type(plain)(*(fenced(array) for array in plain))

    vars(cascade)["workspace"] = build_fenced


def fuzz_decoder(rng: Rng, count: int) -> Counter[str]:
    good, large = bases(rng), large_bases(rng)
    codecs = {(width, num_threads): Cascade(width, num_threads) for width in (2, 4) for num_threads in (1, 3)}
    source, target = Fence(1 << 17), Fence(1 << 17)
    ends: Counter[str] = Counter()
    for _ in range(count):
        base = good[int(rng.integers(len(good)))] if rng.random() < 0.98 else large[int(rng.integers(2))]
        codec = codecs[base.width, 3 if rng.random() < 0.03 else 1]
        ends[decode_one(codec, base, mutate(rng, base), source, target, at_front=bool(rng.integers(2)))] += 1
    return ends


def decode_one(codec: Cascade, base: Base, stream: bytes, source: Fence, target: Fence, *, at_front: bool) -> str:
    """How decoding ended: the fault it named, or whether the slab came out right."""
    payload = source.take(len(stream), at_front=at_front)
    payload[:] = np.frombuffer(stream, np.uint8)
    raw = target.take(len(base.raw), at_front=at_front)
    raw[:] = 0
    try:
        codec.decode(payload, base.sections, raw)
    except ProtocolError as error:
        return next(fault for fault in FAULTS if fault in str(error))
    finally:
        source.check()
        target.check()
        assert payload.tobytes() == stream
    return "right slab" if raw.tobytes() == base.raw else "wrong slab"


def fuzz_encoder(rng: Rng, count: int) -> Counter[str]:
    source, target, back = (Fence(1 << 20) for _ in range(3))
    ends: Counter[str] = Counter()
    for _ in range(count):
        numbers = DTYPES[NAMES[int(rng.integers(len(NAMES)))]]
        tokens, dims = int(rng.integers(1, 100)), int(rng.integers(1, 150))
        sections = [Section(numbers, int(rng.integers(1, 3)), tokens, dims)]
        content, codec, at_front = slab(rng, sections, PATTERNS), Cascade(int(rng.choice([2, 4]))), rng.random() < 0.5
        raw = source.take(content.size, at_front=at_front)
        raw[:] = content
        out = target.take(content.size - (int(rng.integers(content.size)) if rng.random() < 0.2 else 0))
        try:
            payload = out[: codec.encode(raw, sections, out)]
        except SlabTooLarge:
            ends["too large"] += 1
            continue
        finally:
            target.check()
        codec.decode(payload, sections, again := back.take(content.size, at_front=at_front))
        back.check()
        assert again.tobytes() == content.tobytes()
        ends["raw" if payload.size == raw.size else "coded"] += 1
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("decodes", 100_000), ("encodes", 1000), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    fence_workspaces()
    encodes = fuzz_encoder(np.random.default_rng(options.seed), options.encodes)
    decodes = fuzz_decoder(np.random.default_rng(options.seed), options.decodes)
    print(json.dumps({"encodes": encodes, "decodes": decodes}))


if __name__ == "__main__":
    main()
