"""KV travels while prefill still runs."""

from __future__ import annotations

import pytest

from tests.engines.rig.pair import EnginePair, Order
from tests.engines.rig.testbed import CHUNK_TOKENS, MAX_TOKENS, Testbed, make_prompt
from tests.engines.rig.timeline import Event

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NUM_TOKENS = 2500
NUM_LAYERS = 30


def cells(events: list[Event], num_tokens: int) -> set[tuple[int, int]]:
    """`(layer, token)` pairs below `num_tokens` that the slabs cover."""
    return {
        (layer, token)
        for event in events
        for layer in range(*event["layers"])
        for token in range(event["tokens"][0], min(event["tokens"][1], num_tokens))
    }


def landed_before_last_step(ours: Testbed, pair: EnginePair, order: Order) -> list[Event]:
    """Slabs on D before P began to compute the last chunk, by P's own steps and D's timeline."""
    pair.prefill.call("steps")
    outcome = pair.transfer(make_prompt(NUM_TOKENS), MAX_TOKENS, order)
    steps = [step for step in pair.prefill.call("steps") if outcome.prefill.request in step["tokens"]]
    assert len(steps) == -(-NUM_TOKENS // CHUNK_TOKENS)
    timeline = ours.timeline(pair.decode)
    assert outcome.decode.num_computed == MAX_TOKENS, f"D recomputed: {timeline.reasons(outcome.transfer_id)}"
    landed = timeline.events(outcome.transfer_id, "landed")
    assert landed, "nothing was recorded"
    return [event for event in landed if event["t"] < steps[-1]["t_start"]]


def test_first_chunk_lands_before_last_is_computed(ours: Testbed, smollm: EnginePair) -> None:
    early = landed_before_last_step(ours, smollm, "concurrent")
    assert cells(early, CHUNK_TOKENS) == {
        (layer, token) for layer in range(NUM_LAYERS) for token in range(CHUNK_TOKENS)
    }


def test_nothing_lands_early_when_decode_comes_last(ours: Testbed, smollm: EnginePair) -> None:
    """Control: the same look at a sequential transfer finds no slab."""
    assert landed_before_last_step(ours, smollm, "sequential") == []


def test_timelines_agree(ours: Testbed, smollm: EnginePair) -> None:
    """Every slab is posted and written once by P, landed and scattered once on D; both cover the prompt."""
    outcome = smollm.transfer(make_prompt(NUM_TOKENS), MAX_TOKENS, "concurrent")
    on_prefill, on_decode = ours.timeline(smollm.prefill), ours.timeline(smollm.decode)
    on_prefill.wait_for(outcome.transfer_id, "closed")
    by_event = {
        name: [event["seq"] for event in timeline.events(outcome.transfer_id, name)]
        for timeline, names in ((on_prefill, ("posted", "written")), (on_decode, ("landed", "scattered")))
        for name in names
    }
    assert len({tuple(sorted(seqs)) for seqs in by_event.values()}) == 1, by_event
    sent = cells(on_prefill.events(outcome.transfer_id, "posted"), NUM_TOKENS)
    assert len(sent) >= NUM_LAYERS * (NUM_TOKENS - 1)
    assert [event["event"] for event in on_decode.events(outcome.transfer_id)][-1] == "complete"
