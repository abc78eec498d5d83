"""Cascade streams that must never change: a slab and its stream for each, written by the plain codec.

After a change of format, with its version raised: `python -m tests.unit.codec.test_cascade_golden` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pdkv_connector.codec.cascade import Cascade
from pdkv_connector.codec.cascade_format import DTYPES, Numbers, Section
from tests.unit.codec import spec_codec as spec
from tests.unit.codec.cascade_cases import Elements, any_bits, constant, decode, encode, normal, plainly, slab

GOLDEN = Path(__file__).with_name("golden")
KV = Section(DTYPES["bfloat16"], 3, 40, 9)


def spiked(rng: np.random.Generator, numbers: Numbers, shape: tuple[int, int]) -> Elements:
    """Values of which some few are nothing like the others: they pass all levels."""
    return np.where(rng.random(shape) < 0.03, any_bits(rng, numbers, shape), normal(rng, numbers, shape))


SLABS = {
    "bfloat16": ([KV], (spiked, constant, any_bits)),
    "float8_e4m3fn": ([Section(DTYPES["float8_e4m3fn"], 3, 70, 7)], (normal, constant, any_bits)),
    "two_sections": ([Section(KV.numbers, 1, 20, 30), Section(DTYPES["float16"], 1, 63, 13)], (normal, normal)),
}
CODECS = {"split": 2, "pack4": 4}
KINDS = {
    ("bfloat16", "split"): [spec.CODED, spec.CONSTANT, spec.STORED],
    ("bfloat16", "pack4"): [spec.CODED, spec.CONSTANT, spec.STORED],
    ("float8_e4m3fn", "split"): [spec.CODED, spec.CONSTANT, spec.STORED],
    ("float8_e4m3fn", "pack4"): [spec.STORED, spec.CONSTANT, spec.STORED],
    ("two_sections", "split"): [spec.CODED, spec.CODED],
    ("two_sections", "pack4"): [spec.CODED, spec.CODED],
}
cases = pytest.mark.parametrize(("name", "codec"), KINDS)


def read(name: str, codec: str) -> tuple[bytes, bytes]:
    """The slab and its stream."""
    return (GOLDEN / f"{name}.slab").read_bytes(), (GOLDEN / f"{name}.{codec}").read_bytes()


@cases
def test_the_plain_codec(name: str, codec: str) -> None:
    raw, stream = read(name, codec)
    shape = plainly(SLABS[name][0])
    assert spec.encode(raw, shape, CODECS[codec]) == stream
    assert spec.decode(stream, shape) == raw
    assert [place.kind for place in spec.places(stream, shape)] == KINDS[name, codec]


@cases
@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_codec(name: str, codec: str, num_threads: int) -> None:
    raw, stream = (np.frombuffer(data, np.uint8).copy() for data in read(name, codec))
    cascade = Cascade(CODECS[codec], num_threads)
    assert encode(cascade, raw, SLABS[name][0]).tobytes() == stream.tobytes()
    assert decode(cascade, stream, SLABS[name][0]).tobytes() == raw.tobytes()


def write() -> None:
    rng = np.random.default_rng(1)
    for name, (shape, patterns) in SLABS.items():
        singles = [Section(s.numbers, 1, s.num_tokens, s.num_dims) for s in shape for _ in range(s.num_segments)]
        parts = [slab(rng, [single], [pattern]) for single, pattern in zip(singles, patterns, strict=True)]
        raw = np.concatenate(parts).tobytes()
        (GOLDEN / f"{name}.slab").write_bytes(raw)
        for codec, width in CODECS.items():
            (GOLDEN / f"{name}.{codec}").write_bytes(spec.encode(raw, plainly(shape), width))


if __name__ == "__main__":
    write()
