"""What is asked: a fixed pool of prompts, and a seeded, endless series of requests over it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.engines.rig.testbed import make_prompt

Order = Literal["concurrent", "sequential"]

LONGEST_TOKENS = 7_000
NUM_LENGTHS = 48
PREFIX_TOKENS = (300, 900, 1_500, 2_500)
TAIL_TOKENS = (1, 130, 700)
MAX_TOKENS = 8
FAMILY_SHARE = 0.3
FAMILY_WINDOW = 16
"""Requests in a row that draw on one family under one salt: their prefixes meet in both engines' caches."""
SOONEST_ABORT_S, LATEST_ABORT_S = 0.02, 15.0


@dataclass(frozen=True)
class Prompt:
    """Token ids; prompts of one `family` begin alike, those without one share nothing."""

    name: str
    token_ids: tuple[int, ...]
    family: str = ""


@dataclass(frozen=True)
class Request:
    """One request. `abort_after_s` is when its client hangs up, None for one that waits for its answer."""

    number: int
    prompt: Prompt
    cache_salt: str
    num_tokens: int
    order: Order
    abort_after_s: float | None

    def describe(self) -> str:
        """What to know of it in a failure."""
        patience = "" if self.abort_after_s is None else f", given up after {self.abort_after_s:.2f} s"
        length = len(self.prompt.token_ids)
        return f"request {self.number} ({self.prompt.name}, {length} tokens, {self.order} dispatch{patience})"


def pool(longest_tokens: int = LONGEST_TOKENS) -> list[Prompt]:
    """Lengths spread evenly in their logarithm from 1 to `longest_tokens`, and families as long as that allows."""
    lengths = [round(longest_tokens ** (i / (NUM_LENGTHS - 1))) for i in range(NUM_LENGTHS)]
    prompts = [Prompt(f"single-{i}", tuple(make_prompt(n, seed=i))) for i, n in enumerate(lengths)]
    for prefix in PREFIX_TOKENS:
        beginning = make_prompt(prefix, seed=-1)
        for tail in TAIL_TOKENS:
            if prefix + tail <= longest_tokens:
                tokens = (*beginning, *make_prompt(tail, seed=prefix))
                prompts.append(Prompt(f"family-{prefix}-{tail}", tokens, f"family-{prefix}"))
    return prompts


class Workload:
    """Request `number` depends on the seed, the number and the pool alone, whatever happened to others."""

    def __init__(self, seed: int, prompts: Sequence[Prompt], abort_share: float) -> None:
        self._seed = seed
        self._abort_share = abort_share
        self._singles = [prompt for prompt in prompts if not prompt.family]
        self._families = sorted({prompt.family for prompt in prompts if prompt.family})
        self._members = {name: [prompt for prompt in prompts if prompt.family == name] for name in self._families}

    def request(self, number: int) -> Request:
        """The request of this number."""
        dice = random.Random(f"{self._seed}/{number}")
        prompt, cache_salt = dice.choice(self._singles), f"soak-{self._seed}-{number}"
        if self._families and dice.random() < FAMILY_SHARE:
            window = f"soak-{self._seed}-window-{number // FAMILY_WINDOW}"
            family = random.Random(window).choice(self._families)
            prompt, cache_salt = dice.choice(self._members[family]), window
        order: Order = dice.choice(("concurrent", "sequential"))
        num_tokens = dice.randint(1, MAX_TOKENS)
        patience_s = SOONEST_ABORT_S * (LATEST_ABORT_S / SOONEST_ABORT_S) ** dice.random()
        gives_up = dice.random() < self._abort_share
        return Request(number, prompt, cache_salt, num_tokens, order, patience_s if gives_up else None)
