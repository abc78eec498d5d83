"""C03: prompts that the decode engine has in its prefix cache, and what transfers leave in that cache."""

from __future__ import annotations

from typing import Any

from pdkv_connector.adapters.vllm.consumer_scheduler import ConsumerScheduler
from pdkv_connector.adapters.vllm.producer_scheduler import ProducerScheduler
from pdkv_connector.layout.window import needed_tokens
from tests.cases.conftest import OpenPair
from tests.cases.pair import DECODED, Pair, new_transfer_id
from tests.cases.planted import caught, plant
from tests.cases.text import Text
from tests.unit.runtime.prompts import TOKEN_BYTES


def test_case_c03_the_same_prompt_again_moves_nothing(pair: Pair) -> None:
    """vllm#25267: a full hit was not taken from the second call on; blocks were moved and held for nothing."""
    text = Text(97)
    num_bytes = []
    for _ in range(3):
        transfer_id = new_transfer_id()
        pair.ask_prefill(text, transfer_id)
        made = pair.ask_decode(text, transfer_id)
        pair.until_begun(made)
        pair.until_prefill_is_free()
        pair.until_answered(made)
        assert pair.decode.num_computed[made] == DECODED
        num_bytes.append(pair.decode.worker.rank.num_bytes)
    assert 0 < num_bytes[0] == num_bytes[1] == num_bytes[2]


def test_case_c03_only_the_tokens_past_the_hit_move_again(pair: Pair) -> None:
    text = Text(105)
    pair.transfer(text)
    before = pair.decode.worker.rank.num_bytes
    pair.transfer(text)
    assert pair.decode.worker.rank.num_bytes - before == (104 - 96) * TOKEN_BYTES


def test_case_c03_what_a_transfer_left_in_the_cache_is_right_for_every_other_prompt(pair: Pair) -> None:
    """The first block of a window was fetched from the window's start on, and cached as if it were whole: a shorter
    prompt with the same beginning attended to what had been there before.
    """
    text = Text(200)
    pair.transfer(text.first(105))
    for num_tokens in range(97, 121):
        made = pair.decode.add(text.first(num_tokens), max_tokens=3)
        pair.until_answered(made)
        assert pair.decode.num_computed[made] < 32, "there was no hit: nothing was looked at"


def test_case_c03_a_block_that_the_producer_has_let_go_is_not_read(open_pair: OpenPair) -> None:
    """The decode engine's larger block begins before what the producer keeps. It computes the prompt itself."""
    pair = open_pair({"num_blocks": 24}, {"block_size": 64})
    text = Text(200)
    params = pair.params_of(pair.ask_prefill(text.first(105)))
    other = pair.prefill.add(Text(90))
    pair.until(lambda: other in pair.prefill.answers, "answer to the request that takes the blocks over")
    pair.decode.add(text.first(105), params)
    pair.until_released()
    for num_tokens in range(65, 71):
        made = pair.decode.add(text.first(num_tokens), max_tokens=3)
        pair.until_answered(made)
        assert pair.decode.num_computed[made] < 64, "there was no hit: nothing was looked at"


def _ignore_the_hit(_original: Any) -> Any:
    return lambda self, group, stop, _hit: needed_tokens(stop, 0, self._windows[group])


def only_the_window(_original: Any) -> Any:
    return lambda self, group, stop, hit: needed_tokens(stop, hit, self._windows[group])


def say_nothing_of_full_hits(original: Any) -> Any:
    def allocated(self: ConsumerScheduler, request: Any, blocks: Any, num_external: int, plan: Any) -> None:
        if num_external:
            original(self, request, blocks, num_external, plan)

    return allocated


def test_case_c03_control_a_hit_that_moves_all_the_same(pair: Pair) -> None:
    with caught(r"104 - 96", plant(ConsumerScheduler, "_needs", _ignore_the_hit)):
        test_case_c03_only_the_tokens_past_the_hit_move_again(pair)


def test_case_c03_control_a_producer_that_is_not_told(pair: Pair) -> None:
    with caught("no release of the prefill", plant(ConsumerScheduler, "allocated", say_nothing_of_full_hits)):
        test_case_c03_the_same_prompt_again_moves_nothing(pair)


def test_case_c03_control_a_block_cached_half_filled(pair: Pair) -> None:
    with caught("attends to wrong KV", plant(ConsumerScheduler, "_needs", only_the_window)):
        test_case_c03_what_a_transfer_left_in_the_cache_is_right_for_every_other_prompt(pair)


def test_case_c03_control_a_block_read_after_it_was_let_go(open_pair: OpenPair) -> None:
    fault = plant(ProducerScheduler, "_kept", lambda _original: lambda _self, _sending, blocks: blocks)
    with caught("attends to wrong KV", fault):
        test_case_c03_a_block_that_the_producer_has_let_go_is_not_read(open_pair)
