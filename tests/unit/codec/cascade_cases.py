"""Slabs for the tests of the cascade stream: every element type, and contents that are kind or unkind to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pdkv_connector.codec.cascade import Cascade
from pdkv_connector.codec.cascade_format import DTYPES, Numbers, Section
from tests.unit.codec import spec_codec as spec

Bytes = npt.NDArray[np.uint8]
Elements = npt.NDArray[Any]
NAMES = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2")
MAX_ELEMENTS = 60_000
"""Of one section: the plain codec is slow."""
GUARD_BYTES = 64


def normal(rng: np.random.Generator, numbers: Numbers, shape: tuple[int, int]) -> Elements:
    """Gaussian values, each dim at a scale of its own, as KV has them: exponents crowd below the dim's largest."""
    _, exponent_bits, mantissa_bits = numbers
    scale = rng.integers(-3, 4, shape[1]) + 2 ** (exponent_bits - 1) - 1
    exponent = np.floor(np.log2(np.abs(rng.standard_normal(shape)) + 1e-9)).astype(np.int64) + scale
    exponent = np.clip(exponent, 0, 2**exponent_bits - 1)
    return np.asarray(exponent << mantissa_bits | rng.integers(0, 2**mantissa_bits, shape) | sign(rng, numbers, shape))


def sign(rng: np.random.Generator, numbers: Numbers, shape: tuple[int, int]) -> Elements:
    return rng.integers(0, 2, shape) << (8 * numbers.elem_bytes - 1)


def any_bits(rng: np.random.Generator, numbers: Numbers, shape: tuple[int, int]) -> Elements:
    return rng.integers(0, 2 ** (8 * numbers.elem_bytes), shape)


def constant(rng: np.random.Generator, numbers: Numbers, shape: tuple[int, int]) -> Elements:
    return np.full(shape, any_bits(rng, numbers, (1, 1))[0, 0])


def specials(rng: np.random.Generator, numbers: Numbers, shape: tuple[int, int]) -> Elements:
    """NaNs of any payload, infinities, denormals, zeros of both signs, among other values."""
    _, exponent_bits, mantissa_bits = numbers
    top, mantissa = (2**exponent_bits - 1) << mantissa_bits, rng.integers(0, 2**mantissa_bits, shape)
    kinds = np.stack([top | mantissa, np.full(shape, top), mantissa, np.zeros(shape, np.int64)])
    kinds = np.concatenate([kinds | sign(rng, numbers, shape), normal(rng, numbers, shape)[None]])
    return np.asarray(np.take_along_axis(kinds, rng.choice(5, (1, *shape), p=rng.dirichlet(np.ones(5))), 0)[0])


def outlier(rng: np.random.Generator, numbers: Numbers, shape: tuple[int, int]) -> Elements:
    elements = constant(rng, numbers, shape)
    elements[rng.integers(shape[0]), rng.integers(shape[1])] = any_bits(rng, numbers, (1, 1))[0, 0]
    return elements


def negative_zero(rng: np.random.Generator, numbers: Numbers, shape: tuple[int, int]) -> Elements:
    return sign(rng, numbers, shape)


def zeros(rng: np.random.Generator, numbers: Numbers, shape: tuple[int, int]) -> Elements:
    return np.zeros(shape, np.int64)


Pattern = Callable[[np.random.Generator, Numbers, tuple[int, int]], Elements]
PATTERNS: tuple[Pattern, ...] = (normal, any_bits, constant, specials, outlier, negative_zero, zeros)


def slab(rng: np.random.Generator, sections: Sequence[Section], patterns: Sequence[Pattern] = PATTERNS) -> Bytes:
    """Bytes of `sections` in wire order, each segment after a pattern drawn from `patterns`."""
    parts = [np.zeros(0, np.uint8)]
    for section in sections:
        for _ in range(section.num_segments):
            pattern = patterns[int(rng.integers(len(patterns)))]
            elements = pattern(rng, section.numbers, (section.num_tokens, section.num_dims))
            parts.append(elements.astype(f"<u{section.numbers.elem_bytes}").reshape(-1).view(np.uint8))
    return np.concatenate(parts)


@st.composite
def sections(draw: st.DrawFn) -> list[Section]:
    """One to three sections; neighbours may be of equal geometry."""
    drawn = []
    for _ in range(draw(st.integers(1, 3))):
        num_tokens, num_dims = draw(st.integers(1, 600)), draw(st.integers(1, 600))
        num_tokens = min(num_tokens, MAX_ELEMENTS // num_dims)
        num_segments = draw(st.integers(1, max(1, min(4, MAX_ELEMENTS // (num_tokens * num_dims)))))
        drawn.append(Section(DTYPES[draw(st.sampled_from(NAMES))], num_segments, num_tokens, num_dims))
        if draw(st.integers(0, 4)) == 0:
            drawn.append(drawn[-1])
    return drawn


def plainly(sections: Sequence[Section]) -> list[spec.Section]:
    """The same sections for the plain codec, neighbours of equal geometry joined as the format has them."""
    joined: list[spec.Section] = []
    for section in sections:
        one = spec.Section(*section.numbers, section.num_segments, section.num_tokens, section.num_dims)
        if joined and joined[-1]._replace(num_segments=0) == one._replace(num_segments=0):
            one = one._replace(num_segments=joined.pop().num_segments + one.num_segments)
        joined.append(one)
    return joined


class Guarded:
    """`data` between bytes that nobody may write."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = np.full(num_bytes + 2 * GUARD_BYTES, 0xA5, np.uint8)
        self.data = self._memory[GUARD_BYTES : GUARD_BYTES + num_bytes]

    def check(self) -> None:
        """Fail if a guard was written."""
        assert (self._memory[:GUARD_BYTES] == 0xA5).all()
        assert (self._memory[-GUARD_BYTES:] == 0xA5).all()


def encode(codec: Cascade, raw: Bytes, sections: Sequence[Section], out_bytes: int | None = None) -> Bytes:
    """The payload of `raw`, from a buffer of `out_bytes` (its own size) that is written nowhere else."""
    out = Guarded(raw.size if out_bytes is None else out_bytes)
    payload = out.data[: codec.encode(raw, sections, out.data)]
    out.check()
    return payload.copy()


def decode(codec: Cascade, payload: Bytes, sections: Sequence[Section]) -> Bytes:
    """The slab of `payload`, into a buffer that is written nowhere else, even when decoding fails."""
    raw = Guarded(sum(section.raw_bytes for section in sections))
    try:
        codec.decode(payload, sections, raw.data)
    finally:
        raw.check()
    return raw.data
