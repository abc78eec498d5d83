"""Transfers that do not come to a good end: given up, withdrawn, refused, or left by a side that stopped."""

from __future__ import annotations

import pytest

from pdkv_connector.transport.loopback import LoopbackTransport
from pdkv_connector.types import Span
from tests.unit.runtime.conftest import OpenRank
from tests.unit.runtime.prompts import NUM_LAYERS, Prompt
from tests.unit.runtime.rank import toy_facts
from tests.unit.runtime.roles import CHUNK_TOKENS, Decode, Prefill


def under_way(prefill: Prefill, decode: Decode) -> Prompt:
    """A transfer whose first chunk is on its way."""
    prompt = Prompt(4 * CHUNK_TOKENS)
    decode.want(prompt, prefill)
    prefill.offer(prompt)
    prefill.compute(prompt, Span(0, CHUNK_TOKENS))
    decode.rank.wait_slabs(1)
    return prompt


def assert_serves(prefill: Prefill, decode: Decode) -> None:
    """The next transfer arrives: what happened before did no lasting harm."""
    prompt = Prompt(CHUNK_TOKENS + 3)
    decode.rank.outcome.failed.clear()
    decode.want(prompt, prefill)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    prefill.rank.wait_released(prompt)


def test_case_c29_nothing_is_written_once_the_engine_knows_that_it_failed(prefill: Prefill, decode: Decode) -> None:
    prompt = under_way(prefill, decode)
    decode.unwant(prompt, "decode request ended as FINISHED_ABORTED")
    assert decode.rank.wait_failed(prompt) == "decode request ended as FINISHED_ABORTED"
    before = decode.snapshot()
    prefill.compute(prompt, Span(CHUNK_TOKENS, prompt.num_tokens))
    prefill.finish(prompt)
    prefill.rank.wait_released(prompt)
    assert decode.snapshot() == before
    assert decode.wrong_elements() == 0
    assert_serves(prefill, decode)


def test_case_c11_an_abort_on_the_producer_is_told(prefill: Prefill, decode: Decode) -> None:
    prompt = under_way(prefill, decode)
    prefill.withdraw(prompt, "prefill request ended as FINISHED_ABORTED")
    assert "gave up: prefill request ended as FINISHED_ABORTED" in decode.rank.wait_failed(prompt)
    prefill.rank.wait_released(prompt)
    assert decode.wrong_elements() == 0
    assert_serves(prefill, decode)


def test_a_producer_that_stops_is_given_up(open_rank: OpenRank, prefill: Prefill) -> None:
    decode = Decode(open_rank("nhd", 16, peer_timeout_s=0.5))
    prompt = under_way(prefill, decode)
    prefill.rank.runtime.stop()
    assert "did not answer for 0.5 s" in decode.rank.wait_failed(prompt)
    assert decode.wrong_elements() == 0


def test_a_consumer_that_stops_is_given_up(open_rank: OpenRank, decode: Decode) -> None:
    prefill = Prefill(open_rank("cpu_amx", 32, lease_s=2))
    prompt = under_way(prefill, decode)
    decode.rank.runtime.stop()
    prefill.compute(prompt, Span(CHUNK_TOKENS, prompt.num_tokens))
    prefill.finish(prompt)
    prefill.rank.wait_released(prompt)


def test_nobody_comes(open_rank: OpenRank) -> None:
    """Both at once: a lease ends on the producer, a wait for the prefill request on the consumer."""
    prefill = Prefill(open_rank("cpu_amx", 32, lease_s=1))
    decode = Decode(open_rank("nhd", 16, producer_timeout_s=0.5))
    unwanted, unknown = Prompt(30), Prompt(30)
    prefill.run(unwanted)
    decode.want(unknown, prefill)
    assert "no prefill request came" in decode.rank.wait_failed(unknown)
    prefill.rank.wait_released(unwanted)


@pytest.mark.parametrize("consumer_first", [True, False])
def test_another_prompt_is_refused_with_both_lengths(prefill: Prefill, decode: Decode, consumer_first: bool) -> None:
    prompt = Prompt(60)
    if not consumer_first:
        prefill.run(prompt)
    decode.want(prompt, prefill, num_prompt_tokens=61, prompt_digest="another")
    if consumer_first:
        prefill.run(prompt)
    reason = decode.rank.wait_failed(prompt)
    assert "prompt differs: producer has 60 tokens, consumer 61" in reason
    assert [decode.rank.num_changed(layer) for layer in range(NUM_LAYERS)] == [0] * NUM_LAYERS
    prefill.rank.wait_released(prompt)


@pytest.mark.parametrize(
    ("fact", "here", "there"), [("model", "toy", "other"), ("model_digest", "d", "e"), ("num_kv_heads", 2, 4)]
)
def test_another_model_is_refused_by_name(
    open_rank: OpenRank, prefill: Prefill, fact: str, here: object, there: object
) -> None:
    decode = Decode(open_rank("nhd", 16, facts=toy_facts(**{fact: there})))
    prompt = Prompt(30)
    prefill.run(prompt)
    decode.want(prompt, prefill)
    assert f"{fact} differs: producer has {here!r}, consumer has {there!r}" in decode.rank.wait_failed(prompt)


def test_case_c21_another_dtype_is_refused_with_both_named(open_rank: OpenRank, prefill: Prefill) -> None:
    layers = tuple(type(layer)(layer.name, 2, layer.heads, layer.head_dim, "float8_e4m3fn", layer.window)
                   for layer in toy_facts().layers)  # fmt: skip
    decode = Decode(open_rank("nhd", 16, facts=toy_facts(layers=layers)))
    prompt = Prompt(30)
    decode.want(prompt, prefill)
    reason = decode.rank.wait_failed(prompt)
    assert "dtype of layer layer.0 differs: producer has 'bfloat16', consumer has 'float8_e4m3fn'" in reason


def test_another_transport_is_refused_with_both_named(open_rank: OpenRank, prefill: Prefill) -> None:
    class Pigeon(LoopbackTransport):
        @property
        def name(self) -> str:
            return "pigeon"

    decode = Decode(open_rank("nhd", 16, transport=Pigeon()))
    prompt = Prompt(30)
    decode.want(prompt, prefill)
    assert "transport differs: producer has 'loopback', consumer has 'pigeon'" in decode.rank.wait_failed(prompt)


def test_another_engine_behind_the_address_is_refused(prefill: Prefill, decode: Decode) -> None:
    prompt = Prompt(30)
    decode.want(prompt, prefill, engine_id="somebody else")
    assert "'somebody else'" in decode.rank.wait_failed(prompt)
    assert_serves(prefill, decode)


@pytest.mark.parametrize("endpoint", ["nonsense", "127.0.0.1:0", "http://127.0.0.1:1"])
def test_a_malformed_endpoint_is_named(prefill: Prefill, decode: Decode, endpoint: str) -> None:
    prompt = Prompt(30)
    decode.want(prompt, prefill, endpoints=(endpoint,))
    assert repr(endpoint) in decode.rank.wait_failed(prompt)
    assert_serves(prefill, decode)


def test_ranks_that_do_not_divide_are_told(prefill: Prefill, decode: Decode) -> None:
    prompt = Prompt(30)
    decode.want(prompt, prefill, tp_size=2)
    assert "1 producer endpoints do not divide by tp_size 2" in decode.rank.wait_failed(prompt)
