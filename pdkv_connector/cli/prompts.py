"""Readable prompts of a wanted length, different for every seed: no prefix cache has seen them."""

from __future__ import annotations

import random

SHIPS = ("Aurora", "Meridian", "Halcyon", "Sparrow", "Endeavour", "Nightingale", "Windrose", "Constance")
GOODS = ("salt", "timber", "copper", "tea", "wool", "glass", "oranges", "paper")
PORTS = ("Lisbon", "Bergen", "Genoa", "Riga", "Dublin", "Cadiz", "Tallinn", "Marseille")
TOKENS_PER_LINE = 23


def ship_log(num_tokens: int, seed: str) -> str:
    """A ship's log of about `num_tokens` tokens that ends in a question; the first line already depends on `seed`."""
    dice = random.Random(seed)  # noqa: S311
    lines = [_line(dice) for _ in range(max(1, num_tokens // TOKENS_PER_LINE))]
    return "\n".join([f"Harbour book {dice.randrange(10**9)}.", *lines, "The ship that sailed most often was"])


def _line(dice: random.Random) -> str:
    ship, goods = dice.choice(SHIPS), dice.choice(GOODS)
    start, end = dice.sample(PORTS, 2)
    year, loads = dice.randrange(1600, 1900), dice.randrange(10, 99)
    return f"In {year} the {ship} carried {loads} loads of {goods} from {start} to {end}."
