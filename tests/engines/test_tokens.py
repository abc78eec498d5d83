"""D's greedy tokens equal those of one engine alone, whatever the length, the order of dispatch and the load."""

from __future__ import annotations

import pytest

from tests.engines.rig.pair import EnginePair, Order
from tests.engines.rig.testbed import MAX_TOKENS, Testbed, assert_released, make_prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

LENGTHS = (1, 127, 128, 129, 300, 1000, 2500)
LENGTHS_AT_ONCE = (1, 60, 127, 128, 129, 300, 700, 1000)
ORDERS: tuple[Order, ...] = ("sequential", "concurrent", "consumer_first")


def skip_unless_possible(testbed: Testbed, order: Order) -> None:
    if order != "sequential" and not testbed.dialect.concurrent:
        pytest.skip(f"{testbed.dialect.name} needs P's answer first")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("num_tokens", LENGTHS)
def test_tokens_equal_colocated(testbed: Testbed, pair: EnginePair, num_tokens: int, order: Order) -> None:
    skip_unless_possible(testbed, order)
    prompt = make_prompt(num_tokens)
    reference = testbed.reference(pair.decode, prompt)
    outcome = pair.transfer(prompt, MAX_TOKENS, order)
    assert outcome.decode.token_ids == reference
    # The last prompt token and all outputs but the last: anything more means D computed what P should have sent.
    reasons = testbed.timeline(pair.decode).reasons(outcome.transfer_id)
    assert outcome.decode.num_computed == MAX_TOKENS, reasons
    assert outcome.prefill.num_computed == num_tokens
    assert_released(pair.prefill, pair.decode)


def test_references_tell_prompts_apart(testbed: Testbed, pair: EnginePair) -> None:
    """Control: the oracle is no constant of the model."""
    references = {tuple(testbed.reference(pair.decode, make_prompt(length))) for length in LENGTHS}
    assert len(references) > len(LENGTHS) // 2


@pytest.mark.parametrize("orders", [("sequential",), ("concurrent", "consumer_first")], ids=["sequential", "mixed"])
def test_eight_requests_at_once(testbed: Testbed, pair: EnginePair, orders: tuple[Order, ...]) -> None:
    skip_unless_possible(testbed, orders[0])
    prompts = [make_prompt(length, seed=1) for length in LENGTHS_AT_ONCE]
    references = [testbed.reference(pair.decode, prompt) for prompt in prompts]
    tickets = [pair.start(prompt, MAX_TOKENS, orders[i % len(orders)]) for i, prompt in enumerate(prompts)]
    outcomes = [pair.finish(ticket, prompt, MAX_TOKENS) for ticket, prompt in zip(tickets, prompts, strict=True)]
    assert [outcome.decode.token_ids for outcome in outcomes] == references
    assert {outcome.decode.num_computed for outcome in outcomes} == {MAX_TOKENS}
    assert_released(pair.prefill, pair.decode)
