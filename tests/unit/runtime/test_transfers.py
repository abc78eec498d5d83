"""Whole transfers between two runtimes: every wanted token arrives, nothing else changes."""

from __future__ import annotations

import pytest

from pdkv_connector.types import Span
from tests.unit.runtime.conftest import OpenRank
from tests.unit.runtime.prompts import TOKEN_BYTES, Prompt
from tests.unit.runtime.roles import CHUNK_TOKENS, Decode, Prefill

SIDES = [("cpu_amx", 32, "nhd", 16), ("nhd", 16, "cpu_vec", 48), ("planes_first", 24, "hnd", 64)]


@pytest.mark.parametrize("consumer_first", [True, False], ids=["consumer-first", "producer-first"])
@pytest.mark.parametrize(("ours", "our_size", "theirs", "their_size"), SIDES)
def test_a_prompt_arrives_whole(
    open_rank: OpenRank, consumer_first: bool, ours: str, our_size: int, theirs: str, their_size: int
) -> None:
    prefill, decode = Prefill(open_rank(ours, our_size)), Decode(open_rank(theirs, their_size))
    prompt = Prompt(3 * CHUNK_TOKENS + 7)
    if consumer_first:
        decode.want(prompt, prefill)
        prefill.run(prompt)
    else:
        prefill.run(prompt)
        decode.want(prompt, prefill)
    decode.rank.wait_delivered(prompt)
    assert decode.faults() == []
    prefill.rank.wait_released(prompt)


def test_one_wrong_element_is_seen(prefill: Prefill, decode: Decode) -> None:
    """The comparison of all these tests can fail: in what was asked for, and beside it."""
    prompt = Prompt(70)
    decode.want(prompt, prefill)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    _, blocks, needs = decode.wanted[prompt.transfer_id]
    tensor = decode.rank.memory.tensors[2]
    inside = int((tensor == decode.rank.elements(2, blocks, needs[2]).flat[0]).argmax())
    tensor[inside] ^= 1
    assert decode.faults() == [f"{prompt.transfer_id} layer 2: 1 elements differ"]
    tensor[inside] ^= 1
    beside = int((tensor == 0xA5A5).argmax())
    tensor[beside] = 0
    assert len(decode.faults()) == decode.wrong_elements() == 1


@pytest.mark.parametrize("num_tokens", [2, 10, 33])
def test_case_c01_case_c23_a_prompt_shorter_than_a_block_or_ending_inside_one(
    prefill: Prefill, decode: Decode, num_tokens: int
) -> None:
    prompt = Prompt(num_tokens)
    prefill.run(prompt)
    decode.want(prompt, prefill)
    decode.rank.wait_delivered(prompt)
    assert decode.faults() == []
    prefill.rank.wait_released(prompt)


@pytest.mark.parametrize("hit", [16, 100, 150])
def test_only_what_the_local_prefix_lacks_travels(prefill: Prefill, decode: Decode, hit: int) -> None:
    prompt = Prompt(160)
    decode.want(prompt, prefill, hit=hit)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    assert decode.faults() == []
    _, _, needs = decode.wanted[prompt.transfer_id]
    assert decode.rank.num_bytes == sum(len(span) for span in needs) * TOKEN_BYTES // len(needs)


def test_case_c03_a_full_hit_moves_nothing_and_frees_the_producer(prefill: Prefill, decode: Decode) -> None:
    prompt = Prompt(65)
    prefill.run(prompt)
    decode.want(prompt, prefill, hit=64)
    prefill.rank.wait_released(prompt)
    decode.rank.wait_delivered(prompt)
    assert decode.rank.num_bytes == 0
    assert decode.faults() == []


def test_case_c26_a_long_prompt_streams_while_it_is_computed(prefill: Prefill, decode: Decode) -> None:
    """The consumer holds the first chunk before the producer has computed the last."""
    prompt = Prompt(8 * CHUNK_TOKENS)
    decode.want(prompt, prefill)
    prefill.offer(prompt)
    prefill.compute(prompt, Span(0, CHUNK_TOKENS))
    decode.rank.wait_slabs(2 * CHUNK_TOKENS * TOKEN_BYTES // 4 // 4096)
    prefill.compute(prompt, Span(CHUNK_TOKENS, prompt.num_tokens))
    prefill.finish(prompt)
    decode.rank.wait_delivered(prompt)
    assert decode.faults() == []


def test_a_prefix_cached_on_the_producer_goes_at_the_first_step(prefill: Prefill, decode: Decode) -> None:
    prompt = Prompt(130)
    decode.want(prompt, prefill)
    prefill.offer(prompt)
    prefill.find_cached(prompt, Span(0, 128))
    decode.rank.wait_slabs(1)
    prefill.compute(prompt, Span(128, 130))
    prefill.finish(prompt)
    decode.rank.wait_delivered(prompt)
    assert decode.faults() == []


def test_many_transfers_share_a_small_ring(open_rank: OpenRank) -> None:
    small = {"ring_bytes": 4 * 4096, "window_slots": 4}
    prefill = Prefill(open_rank("cpu_vec", 16, **small))
    decode = Decode(open_rank("nhd", 32, **small))
    prompts = [Prompt(17 + number) for number in range(32)]
    for number, prompt in enumerate(prompts):
        if number % 2:
            decode.want(prompt, prefill)
        prefill.run(prompt, chunk_tokens=20)
    for prompt in prompts[::2]:
        decode.want(prompt, prefill)
    decode.rank.wait_delivered(*prompts)
    assert decode.faults() == []
    prefill.rank.wait_released(*prompts)
