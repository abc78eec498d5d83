"""Blocks that the engine takes back in the middle of a transfer."""

from __future__ import annotations

import threading

from pdkv_connector.session.messages import Message
from pdkv_connector.types import Span
from tests.unit.runtime.prompts import NUM_LAYERS, Prompt
from tests.unit.runtime.rank import chunks
from tests.unit.runtime.roles import CHUNK_TOKENS, Decode, Prefill


def test_a_preempted_prompt_is_computed_again_elsewhere(prefill: Prefill, decode: Decode) -> None:
    """Some slabs are gone, some wait for credits when the blocks are overwritten; several prompts, each cut once."""
    prompts = [Prompt(3 * CHUNK_TOKENS + number) for number in range(4)]
    for number, prompt in enumerate(prompts):
        decode.want(prompt, prefill)
        prefill.offer(prompt)
        for tokens in chunks(prompt.num_tokens, CHUNK_TOKENS)[: 1 + number % 3]:
            prefill.compute(prompt, tokens)
        if number % 2:
            decode.rank.wait_slabs(1)
        prefill.preempt(prompt)
    for prompt in prompts:
        for tokens in chunks(prompt.num_tokens, 2 * CHUNK_TOKENS):
            prefill.compute(prompt, tokens)
        prefill.finish(prompt)
    decode.rank.wait_delivered(*prompts)
    assert decode.faults() == []
    prefill.rank.wait_released(*prompts)


def test_without_the_notice_the_next_users_bytes_would_arrive(prefill: Prefill, decode: Decode) -> None:
    """So it is `revoke` that keeps them out."""
    prompt = Prompt(100)
    prefill.offer(prompt)
    prefill.compute(prompt, Span(0, 100))
    prefill.preempt(prompt, told=False)
    prefill.finish(prompt)
    decode.want(prompt, prefill)
    decode.rank.wait_delivered(prompt)
    assert decode.faults()


def test_preempted_before_anyone_came_and_then_withdrawn(prefill: Prefill, decode: Decode) -> None:
    prompt = Prompt(100)
    prefill.offer(prompt)
    prefill.compute(prompt, Span(0, 64))
    prefill.preempt(prompt)
    decode.want(prompt, prefill)
    prefill.withdraw(prompt, "prefill request ended as FINISHED_ABORTED")
    assert "FINISHED_ABORTED" in decode.rank.wait_failed(prompt)
    assert [decode.rank.num_changed(layer) for layer in range(NUM_LAYERS)] == [0] * NUM_LAYERS
    prefill.rank.wait_released(prompt)


def test_a_block_the_window_has_left_is_not_read(prefill: Prefill, decode: Decode) -> None:
    """The producer decoded on before the consumer came: what was needed is gone, and the consumer is told so."""
    prompt = Prompt(100)
    prefill.run(prompt)
    prefill.rank.runtime.expire(prompt.transfer_id, 1, 3)
    decode.want(prompt, prefill)
    assert "block table entry 1 is a hole" in decode.rank.wait_failed(prompt)
    assert decode.wrong_elements() == 0
    prefill.rank.wait_released(prompt)


def test_a_block_that_is_not_needed_may_go(prefill: Prefill, decode: Decode) -> None:
    prompt = Prompt(100)
    prefill.run(prompt)
    prefill.rank.runtime.expire(prompt.transfer_id, 1, prompt.needs()[1].start // prefill.rank.block_size)
    decode.want(prompt, prefill)
    decode.rank.wait_delivered(prompt)
    assert decode.faults() == []


def test_only_the_transfer_thread_touches_sockets(prefill: Prefill, decode: Decode) -> None:
    """A socket used by two threads at once ends the process; preemption comes from the engine's."""
    control, users = prefill.rank.runtime._control, set()
    send = control.send

    def noted(peer: str, message: Message) -> bool:
        users.add(threading.current_thread().name)
        return send(peer, message)

    control.send = noted  # type: ignore[method-assign]
    prompt = Prompt(2 * CHUNK_TOKENS)
    decode.want(prompt, prefill)
    prefill.offer(prompt)
    for _ in range(20):
        prefill.compute(prompt, Span(0, CHUNK_TOKENS))
        prefill.preempt(prompt)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    assert decode.faults() == []
    assert users == {"pdkv-transfer"}


def test_a_preemption_after_the_end_waits_for_nobody(prefill: Prefill) -> None:
    prefill.rank.runtime.stop()
    prefill.rank.runtime.revoke(["t"])
