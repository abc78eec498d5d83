"""What the prefill engine does with one request, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from pdkv_connector.types import Span

NOTHING = Span(0, 0)


@dataclass(frozen=True)
class Step:
    """After `delay_s`: `offer`, `compute` (tokens, all layers), `preempt`, `finish` or `withdraw`."""

    delay_s: float
    do: str
    tokens: Span = NOTHING


def _chunks(rng: Random, num_tokens: int, slow: bool) -> list[Step]:
    steps: list[Step] = []
    start = 0
    while start < num_tokens:
        stop = min(num_tokens, start + rng.choice((num_tokens, rng.randint(1, 12))))
        delay_s = rng.choice((0.01, rng.uniform(0.0, 0.3)))
        steps.append(Step(12.0 if slow and steps else delay_s, "compute", Span(start, stop)))
        slow, start = slow and not steps[1:], stop
    return steps


def draw_script(rng: Random, num_tokens: int, wild: bool, slow_prefill: bool) -> tuple[Step, ...]:
    """Offer, chunked prefill with preemptions, and an end; a wild one may be withdrawn anywhere or never be offered."""
    if wild and rng.random() < 0.06:
        return ()
    steps = [Step(rng.choice((0.0, rng.uniform(0, 2.0))), "offer")]
    while rng.random() < 0.3:
        some = _chunks(rng, num_tokens, False)
        steps += [*some[: rng.randint(0, len(some))], Step(rng.choice((0.005, rng.uniform(0, 0.4))), "preempt")]
    queued_s = 11.0 if slow_prefill and rng.random() < 0.5 else rng.choice((0.0, rng.uniform(0, 2.0)))
    first, *rest = _chunks(rng, num_tokens, slow_prefill)
    steps += [Step(queued_s + first.delay_s, "compute", first.tokens), *rest]
    steps.append(Step(rng.choice((0.0, rng.uniform(0, 0.5))), "finish"))
    if wild and rng.random() < 0.2:
        steps[rng.randint(1, len(steps) - 1) :] = [Step(rng.uniform(0, 0.3), "withdraw")]
    return tuple(steps)
