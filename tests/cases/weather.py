"""What happens in one storm, drawn from a seed: which requests come, in which order, and what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.unit.runtime.prompts import FULL_ONLY, WINDOWS

NUM_TEXTS = 3
TEXT_TOKENS = 150
"""Prompts are beginnings of a few texts, so that they share prefixes."""
NUM_TURNS = 40
NEVER = -1


@dataclass(frozen=True)
class Wish:
    """One client's request. Turns are when something is done, NEVER if not at all.

    `decode_first`: by how many turns the decode leg comes before the prefill leg; None: with the prefill's answer.
    """

    text: int
    num_tokens: int
    begins: int
    decode_first: int | None
    prefill_tokens: int
    decode_tokens: int
    prefill_comes: bool
    decode_comes: bool
    prefill_leaves: int
    decode_leaves: int
    goes_astray: bool
    has_sibling: bool


@dataclass(frozen=True)
class Weather:
    """All of one storm. `restarts` is the turn in which the prefill engine is killed and another takes its port."""

    windows: tuple[int, ...]
    block_sizes: tuple[int, int]
    pool_tokens: tuple[int, int]
    restarts: int
    wishes: tuple[Wish, ...]


def draw(seed: int) -> Weather:
    """The same for the same seed."""
    chance = random.Random(seed)
    return Weather(
        windows=chance.choice((FULL_ONLY, WINDOWS)),
        block_sizes=(chance.choice((16, 16, 32)), chance.choice((16, 16, 32))),
        pool_tokens=(_pool(chance), _pool(chance)),
        restarts=chance.randrange(5, NUM_TURNS) if chance.random() < 0.25 else NEVER,
        wishes=tuple(_wish(chance) for _ in range(chance.randint(4, 9))),
    )


def _pool(chance: random.Random) -> int:
    """Tokens of all KV cache groups together: from just enough for one request to ample."""
    return chance.choice((480, 480, 560, 700, 1500))


def _wish(chance: random.Random) -> Wish:
    begins = chance.randrange(NUM_TURNS // 2)
    return Wish(
        text=chance.randrange(NUM_TEXTS),
        num_tokens=chance.choice((1, 2, chance.randint(3, 40), *(chance.randint(17, TEXT_TOKENS) for _ in range(5)))),
        begins=begins,
        decode_first=chance.choice((None, None, 3, 1, 0, 0, -1, -4)),
        prefill_tokens=chance.choice((1, 1, 1, 1, 30, 70)),
        decode_tokens=chance.choice((1, 3, 20, 60)),
        prefill_comes=chance.random() < 0.93,
        decode_comes=chance.random() < 0.93,
        prefill_leaves=begins + chance.randrange(15) if chance.random() < 0.1 else NEVER,
        decode_leaves=begins + chance.randrange(15) if chance.random() < 0.1 else NEVER,
        goes_astray=chance.random() < 0.05,
        has_sibling=chance.random() < 0.1,
    )
