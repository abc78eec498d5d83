"""A request given up, at any time and on either side, leaves nothing behind and harms nobody."""

from __future__ import annotations

import pytest

from tests.engines.rig.pair import EnginePair, new_transfer_id
from tests.engines.rig.testbed import MAX_TOKENS, Testbed, assert_released, assert_serves, make_prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NUM_TOKENS = 2500
MANY_TOKENS = 400


@pytest.fixture
def quiet(ours: Testbed, pair: EnginePair) -> EnginePair:
    """The pair, with the references of this file already computed."""
    ours.reference(pair.decode, make_prompt(NUM_TOKENS))
    return pair


def test_decode_aborted_before_prefill_is_sent(ours: Testbed, quiet: EnginePair) -> None:
    transfer_id = new_transfer_id("abort")
    decode = quiet.submit_decode(make_prompt(NUM_TOKENS), MAX_TOKENS, transfer_id)
    assert quiet.decode.abort(decode)
    assert quiet.decode.wait(decode).finish_reason == "abort"
    assert_released(quiet.decode)
    prefill = quiet.prefill.wait(quiet.submit_prefill(make_prompt(300), transfer_id))
    assert prefill.finish_reason == "length"
    assert_released(quiet.prefill)
    assert_serves(ours, quiet)


def test_decode_aborted_during_transfer(ours: Testbed, quiet: EnginePair) -> None:
    ticket = quiet.start(make_prompt(NUM_TOKENS), MAX_TOKENS, "concurrent")
    ours.timeline(quiet.decode).wait_for(ticket.transfer_id, "landed")
    assert quiet.decode.abort(ticket.decoding())
    assert quiet.prefill.wait(ticket.on_prefill).finish_reason == "length"
    assert_released(quiet.prefill, quiet.decode)
    assert_serves(ours, quiet)


def test_decode_aborted_after_transfer(ours: Testbed, quiet: EnginePair) -> None:
    ticket = quiet.start(make_prompt(300), MANY_TOKENS, "concurrent")
    ours.timeline(quiet.decode).wait_for(ticket.transfer_id, "complete")
    assert quiet.decode.abort(ticket.decoding())
    assert_released(quiet.prefill, quiet.decode)
    assert_serves(ours, quiet)


@pytest.mark.parametrize("moment", ["at_once", "during"])
def test_prefill_aborted(ours: Testbed, quiet: EnginePair, moment: str) -> None:
    """D learns of it and computes the prompt itself."""
    prompt = make_prompt(NUM_TOKENS)
    ticket = quiet.start(prompt, MAX_TOKENS, "consumer_first")
    if moment == "during":
        ours.timeline(quiet.decode).wait_for(ticket.transfer_id, "landed")
    assert quiet.prefill.abort(ticket.on_prefill)
    decode = quiet.decode.wait(ticket.decoding())
    assert decode.token_ids == ours.reference(quiet.decode, prompt)
    assert decode.num_computed > MAX_TOKENS, "D did not recompute: the transfer was over before the abort"
    assert ours.timeline(quiet.decode).reasons(ticket.transfer_id)
    assert_released(quiet.prefill, quiet.decode)
    assert_serves(ours, quiet)


def test_decode_never_comes(ours: Testbed, quiet: EnginePair) -> None:
    """P holds the blocks under a lease, and only so long."""
    prefill = quiet.prefill.wait(quiet.submit_prefill(make_prompt(NUM_TOKENS), new_transfer_id("lonely")))
    assert prefill.finish_reason == "length"
    assert quiet.prefill.free_blocks() < quiet.prefill.facts["num_blocks"] - 1, "nothing was held: not a lease"
    assert_released(quiet.prefill)
    assert_serves(ours, quiet)


def test_prefill_preempted_during_transfer(ours: Testbed, quiet: EnginePair) -> None:
    """P loses its blocks under memory pressure, computes them again, and D gets the right KV."""
    prompt = make_prompt(NUM_TOKENS)
    ticket = quiet.start(prompt, MAX_TOKENS, "concurrent")
    ours.timeline(quiet.decode).wait_for(ticket.transfer_id, "landed")
    quiet.prefill.call("preempt")
    outcome = quiet.finish(ticket, prompt, MAX_TOKENS)
    assert outcome.prefill.num_computed > NUM_TOKENS, "P was not preempted"
    assert outcome.decode.token_ids == ours.reference(quiet.decode, prompt)
    assert_released(quiet.prefill, quiet.decode)


def test_decode_preempted_after_transfer(ours: Testbed, quiet: EnginePair) -> None:
    """D loses the blocks while it decodes; the producer has freed its own long ago."""
    prompt = make_prompt(300)
    reference = ours.reference(quiet.decode, prompt, MANY_TOKENS)
    ticket = quiet.start(prompt, MANY_TOKENS, "concurrent")
    ours.timeline(quiet.decode).wait_for(ticket.transfer_id, "complete")
    quiet.decode.call("preempt")
    outcome = quiet.finish(ticket, prompt, MANY_TOKENS)
    assert outcome.decode.num_computed > MANY_TOKENS, "D was not preempted"
    assert outcome.decode.token_ids == reference
    assert_released(quiet.prefill, quiet.decode)
