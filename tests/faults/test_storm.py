"""Many requests at once, some of whose clients leave at random moments."""

from __future__ import annotations

import random
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import pytest

from tests.engines.rig.testbed import make_prompt
from tests.faults.rig.client import Answer
from tests.faults.rig.ground import LEASE_S, PEER_TIMEOUT_S
from tests.faults.rig.record import RECORD
from tests.faults.rig.served import Served, body_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SEED = 20
NUM_REQUESTS, NUM_AT_ONCE, SHARE_LEAVING = 60, 8, 0.2
LONGEST_STAY_S = 4.0
MAX_TOKENS = 12
LENGTHS = (1, 60, 127, 128, 200, 300)
PROMPTS = [make_prompt(length, seed=9) for length in LENGTHS]
ANSWER_S = 150.0


def one(served: Served, prompt: list[int], stay_s: float | None) -> Answer | None:
    """A client with one request; it leaves after `stay_s`, if it has not been answered by then."""
    pending = served.over_proxy(body_of(prompt, MAX_TOKENS))
    if stay_s is None:
        return pending.result(ANSWER_S)
    time.sleep(stay_s)
    pending.cancel()
    try:
        return pending.result(ANSWER_S)
    except CancelledError:
        return None


def storm(served: Served, seed: int) -> list[tuple[int, Answer | None]]:
    """All requests: which prompt, and the answer of those that stayed."""
    dice = random.Random(seed)
    plans = [
        (dice.randrange(len(PROMPTS)), dice.uniform(0, LONGEST_STAY_S) if dice.random() < SHARE_LEAVING else None)
        for _ in range(NUM_REQUESTS)
    ]
    with ThreadPoolExecutor(NUM_AT_ONCE) as clients:
        answers: list[Future[Answer | None]] = [
            clients.submit(one, served, PROMPTS[number], stay_s) for number, stay_s in plans
        ]
        return [(number, answer.result()) for (number, _), answer in zip(plans, answers, strict=True)]


def wrong(answers: list[tuple[int, Answer | None]], references: list[list[int]]) -> list[str]:
    """Answers that are errors or hold other tokens than D alone gives."""
    return [
        answer.error or f"prompt {number}: {answer.token_ids} instead of {references[number]}"
        for number, answer in answers
        if answer is not None and (answer.error or answer.token_ids != references[number])
    ]


def test_case_c11_case_c29_clients_that_leave_in_a_storm_harm_nobody(served: Served) -> None:
    """Whatever state a transfer is in when its client leaves, its blocks come back, and hold their next owner's KV."""
    references = [served.reference(prompt, MAX_TOKENS) for prompt in PROMPTS]
    begun, loaded = time.monotonic(), served.decode.loaded_tokens()
    answers = storm(served, SEED)
    storm_s = time.monotonic() - begun
    num_left = sum(answer is None for _, answer in answers)
    assert 0 < num_left < NUM_REQUESTS / 2, "the seed makes nobody leave in time, or nearly everybody"
    assert wrong(answers, references) == []
    assert served.decode.loaded_tokens() > loaded, "no KV moved: a storm over nothing"
    back_s = served.assert_at_rest(LEASE_S + PEER_TIMEOUT_S)
    what = f"{NUM_REQUESTS} requests, {NUM_AT_ONCE} at a time, {num_left} clients left"
    RECORD.note("request storm", what, "all other tokens right", storm_s)
    RECORD.note("request storm", what, "all blocks back on both", back_s)
    served.assert_serves(PROMPTS[-1])


def test_case_c11_case_c29_control_wrong_tokens_are_seen(served: Served) -> None:
    """The tokens of another prompt in the place of one's own are reported."""
    references = [served.reference(prompt, MAX_TOKENS) for prompt in PROMPTS]
    answers: list[tuple[int, Answer | None]] = [
        (number, served.over_proxy(body_of(prompt, MAX_TOKENS)).result(ANSWER_S))
        for number, prompt in enumerate(PROMPTS)
    ]
    assert wrong(answers, references) == []
    assert len(wrong(answers, references[1:] + references[:1])) == len(PROMPTS)
