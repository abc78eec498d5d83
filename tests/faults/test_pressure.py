"""KV pools too small for what is asked at once: preemption on both sides, and transfers that wait for blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.engines.rig.pair import EnginePair, Outcome, new_transfer_id
from tests.engines.rig.testbed import BLOCK_TOKENS, Testbed, make_prompt
from tests.faults.rig.ground import PEER_TIMEOUT_S, Ground, assert_at_rest, assert_both_serve, is_remote
from tests.faults.rig.record import RECORD

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

NUM_BLOCKS = 12
FILLING_TOKENS = 24
NUM_USABLE = NUM_BLOCKS - 1  # one is vLLM's null block
CONTEXT_TOKENS = 1024
PATIENCE_S = 15.0
PATIENT = {"lease_s": PATIENCE_S, "producer_timeout_s": PATIENCE_S}
"""While a pool is full, KV waits: longer than a busy machine takes for what is in front."""
TINY = {
    "num_gpu_blocks_override": NUM_BLOCKS,
    "max_model_len": CONTEXT_TOKENS,
    "scheduler_reserve_full_isl": False,  # or a prefill would never be begun that may have to be preempted
}


@pytest.fixture(scope="module")
def tiny_ground(testbed: Testbed) -> Ground:
    return Ground(testbed, label="tiny", settings=PATIENT, args=TINY)


@pytest.fixture
def tiny(tiny_ground: Ground, no_servers: None) -> Iterator[EnginePair]:
    """A pair of engines with room for one and a half of the longest requests."""
    yield tiny_ground.pair()
    tiny_ground.pair()


def run(pair: EnginePair, prompts: list[list[int]], max_tokens: int) -> list[Outcome]:
    """All computed by P, then all asked of D at the same time."""
    ids = [new_transfer_id("tiny") for _ in prompts]
    begun = [pair.submit_prefill(prompt, name) for prompt, name in zip(prompts, ids, strict=True)]
    prefills = [pair.prefill.wait(request) for request in begun]
    asked = [pair.submit_decode(prompt, max_tokens, name) for prompt, name in zip(prompts, ids, strict=True)]
    decodes = [pair.decode.wait(request) for request in asked]
    return [Outcome(*each) for each in zip(ids, prefills, decodes, strict=True)]


def num_preemptions(pair: EnginePair) -> tuple[float, float]:
    """On P and on D, so far."""
    prefill, decode = (engine.metrics()["vllm:num_preemptions"] for engine in (pair.prefill, pair.decode))
    return prefill, decode


def references_of(ground: Ground, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    return [ground.reference(prompt, max_tokens) for prompt in prompts]


def test_decode_engine_preempts(tiny: EnginePair, tiny_ground: Ground) -> None:
    """Requests that grow past D's pool: some lose their blocks and come back, with the right tokens."""
    max_tokens, num_prompt_tokens = 40, 3 * BLOCK_TOKENS - 10
    prompts = [make_prompt(num_prompt_tokens, seed) for seed in (21, 22, 23)]
    assert 3 * 3 <= NUM_USABLE < 3 * 4, "all are admitted, and do not fit when they have grown by a block each"
    references = references_of(tiny_ground, prompts, max_tokens)
    before, begun = num_preemptions(tiny), time.monotonic()
    outcomes = run(tiny, prompts, max_tokens)
    assert [outcome.decode.token_ids for outcome in outcomes] == references
    assert num_preemptions(tiny)[1] > before[1], "D preempted nothing"
    RECORD.note("tiny KV pool", "preemption on D", "all tokens right", time.monotonic() - begun)
    back_s = assert_at_rest(tiny.prefill, tiny.decode, limit_s=PATIENCE_S + PEER_TIMEOUT_S)
    RECORD.note("tiny KV pool", "preemption on D", "all blocks back on both", back_s)
    assert_both_serve(tiny_ground)


def test_prefill_engine_preempts(tiny: EnginePair, tiny_ground: Ground) -> None:
    """P holds KV for a consumer that does not come; the next prompt loses its blocks in the middle of its transfer."""
    held, prompt = (make_prompt(7 * BLOCK_TOKENS, seed) for seed in (24, 25))
    reference = tiny_ground.reference(prompt)
    before, begun = num_preemptions(tiny), time.monotonic()
    tiny.prefill.wait(tiny.submit_prefill(held, new_transfer_id("held")))
    outcome = tiny.transfer(prompt, len(reference), "concurrent")
    assert outcome.decode.token_ids == reference
    assert num_preemptions(tiny)[0] > before[0], "P preempted nothing"
    how = "served remotely" if is_remote(outcome.decode) else "D computed it"
    RECORD.note("tiny KV pool", "preemption on P", f"right tokens, {how}", time.monotonic() - begun)
    assert_at_rest(tiny.prefill, tiny.decode, limit_s=PATIENCE_S + PEER_TIMEOUT_S)
    assert_both_serve(tiny_ground)


def test_case_c13_kv_waits_on_the_prefill_engine_until_the_decode_engine_has_blocks(
    tiny: EnginePair, tiny_ground: Ground
) -> None:
    """D is full when P is done: the KV stays on P meanwhile, and D takes it from there."""
    filler, prompt = (make_prompt(6 * BLOCK_TOKENS + 5, seed) for seed in (27, 28))
    reference, transfer_id = tiny_ground.reference(prompt), new_transfer_id("c13")
    tiny.prefill.wait(tiny.submit_prefill(prompt, transfer_id))
    filling = tiny.decode.submit(filler, FILLING_TOKENS)
    waiting = tiny.submit_decode(prompt, len(reference), transfer_id)
    filled, begun = tiny.decode.wait(filling), time.monotonic()
    answer = tiny.decode.wait(waiting)
    assert answer.token_ids == reference
    assert is_remote(answer), tiny_ground.timeline(tiny.decode).reasons(transfer_id)
    (registered,) = tiny_ground.timeline(tiny.decode).events(transfer_id, "registered")
    assert registered["t"] >= filled.t_finished, "D had blocks for it before"
    RECORD.note("tiny KV pool", "no free block on D", "KV waits on P, served remotely", time.monotonic() - begun)
    assert_at_rest(tiny.prefill, tiny.decode, limit_s=PATIENCE_S)


def test_case_c13_control_kv_that_nobody_comes_for_in_time_is_computed(tiny: EnginePair, tiny_ground: Ground) -> None:
    """Where D is full for longer than P's lease, the KV is gone: seen by what D computes, never by wrong tokens."""
    prompt = make_prompt(6 * BLOCK_TOKENS + 5, 28)
    reference = tiny_ground.reference(prompt)
    ticket = tiny.start(prompt, len(reference), "sequential")
    prefill = tiny.prefill.wait(ticket.on_prefill)
    assert_at_rest(tiny.prefill, limit_s=PATIENCE_S)
    answer = tiny.decode.generate(prompt, len(reference), prefill.kv_transfer_params)
    assert answer.token_ids == reference
    assert not is_remote(answer)


def test_case_c15_kv_that_has_come_is_used_behind_a_request_that_is_stuck(
    tiny: EnginePair, tiny_ground: Ground
) -> None:
    """The first waits for a P that is never asked; the second, behind it, is served meanwhile."""
    stuck, prompt = (make_prompt(2 * BLOCK_TOKENS + 5, seed) for seed in (29, 30))
    references = references_of(tiny_ground, [stuck, prompt], 8)
    in_front = tiny.submit_decode(stuck, 8, "never-prefilled")
    outcome = tiny.transfer(prompt, 8, "concurrent")
    assert outcome.decode.token_ids == references[1]
    assert is_remote(outcome.decode), tiny_ground.timeline(tiny.decode).reasons(outcome.transfer_id)
    assert not tiny.decode.ended(in_front), "nothing was stuck"
    assert tiny.decode.wait(in_front).token_ids == references[0]
    RECORD.note("tiny KV pool", "a request in front is stuck", "the one behind is served remotely")
    assert_at_rest(tiny.prefill, tiny.decode, limit_s=PATIENCE_S)


def test_case_c15_control_the_request_in_front_is_stuck_by_itself(tiny: EnginePair, tiny_ground: Ground) -> None:
    """What is in front does not end before its time-out when nothing is behind it."""
    in_front = tiny.submit_decode(make_prompt(2 * BLOCK_TOKENS + 5, 29), 8, "never-prefilled-either")
    tiny_ground.timeline(tiny.decode).wait_for("never-prefilled-either", "registered")
    assert not tiny.decode.ended(in_front)
    time.sleep(1.0)
    assert not tiny.decode.ended(in_front)
    assert tiny.decode.abort(in_front)
    assert_at_rest(tiny.prefill, tiny.decode, limit_s=PATIENCE_S)
