"""What the coding loops use on processors with BMI2, beside what they use elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from pdkv_connector.codec import simd

needs_bmi2 = pytest.mark.skipif(not simd.HAS_BMI2, reason="the processor has no BMI2 to compare with")
NUM_WORDS = 20_000


def words(seed: int) -> Any:
    """Random words, sparse and dense ones and the extremes among them."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 1 << 64, (4, NUM_WORDS), np.uint64)
    drawn[1] &= drawn[2] & drawn[3]
    drawn[2] |= drawn[3]
    drawn[3, :] = rng.choice(np.array([0, 1, 1 << 63, (1 << 64) - 1, 0x5555555555555555], np.uint64), NUM_WORDS)
    return drawn.reshape(-1)


@njit
def packed(data: Any, masks: Any) -> Any:
    results = np.empty((2, data.size), np.uint64)
    for i in range(data.size):
        results[0, i], results[1, i] = (
            simd.pack_bits(data[i], masks[i]),
            simd.pack_bits_portably(data[i], masks[i]),
        )
    return results


@njit
def spread(data: Any, masks: Any) -> Any:
    results = np.empty((2, data.size), np.uint64)
    for i in range(data.size):
        results[0, i], results[1, i] = (
            simd.spread_bits(data[i], masks[i]),
            simd.spread_bits_portably(data[i], masks[i]),
        )
    return results


def bits(word: int) -> list[int]:
    return [word >> i & 1 for i in range(64)]


@needs_bmi2
@pytest.mark.parametrize("both", [packed, spread])
def test_portable_bits_are_those_of_the_instruction(both: Any) -> None:
    data, masks = words(1), np.random.default_rng(3).permutation(words(2))
    instruction, portable = both(data, masks)
    assert (instruction == portable).all()
    assert (instruction != data).any()


def test_portable_bits_are_those_of_the_definition() -> None:
    data, masks = words(4)[::97], np.random.default_rng(5).permutation(words(6))[::97]
    together, apart = packed(data, masks)[1], spread(data, masks)[1]
    for word, mask, low, wide in zip(data.tolist(), masks.tolist(), together.tolist(), apart.tolist(), strict=True):
        places = [i for i in range(64) if mask >> i & 1]
        assert low == sum(bits(word)[place] << i for i, place in enumerate(places))
        assert wide == sum(bits(word)[i] << place for i, place in enumerate(places))
