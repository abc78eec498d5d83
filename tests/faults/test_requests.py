"""Requests that ask for something special, or for too much: served right or clearly refused, and no block stays."""

from __future__ import annotations

import time
from typing import Any

import pytest
from transformers import AutoTokenizer

from pdkv_connector.cli.models import ensure_model
from pdkv_connector.proxy import bodies
from tests.engines.rig.testbed import make_prompt
from tests.faults.rig.client import Answer
from tests.faults.rig.ground import LEASE_S, PEER_TIMEOUT_S, PRODUCER_TIMEOUT_S
from tests.faults.rig.record import RECORD
from tests.faults.rig.served import CONTEXT_TOKENS, Served, body_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ANSWER_S = 150.0
PROMPT = make_prompt(300, seed=11)
LONG_PROMPT = make_prompt(1500, seed=11)
ALWAYS = 100
TOO_MANY = 1000


def remote_answer(served: Served, body: dict[str, Any], on_prefill: dict[str, Any] | None = None) -> tuple[Answer, int]:
    """D's answer when both servers were asked at once, and how many tokens of KV it took from P."""
    before = served.decode.loaded_tokens()
    prefill, decode = served.legs(body, on_prefill)
    answer = decode.result(ANSWER_S)
    prefill.result(ANSWER_S)
    return answer, served.decode.loaded_tokens() - before


def eos_id() -> int:
    return int(AutoTokenizer.from_pretrained(ensure_model("smollm2")).eos_token_id)


def test_case_c05_a_prefill_whose_first_token_is_eos_delivers(served: Served) -> None:
    """P's request ends as stopped, not as cut off by its length, and D gets its KV all the same."""
    stops = {"logit_bias": {str(eos_id()): ALWAYS}, "ignore_eos": False}
    prefill, decode = served.legs(body_of(PROMPT), stops)
    before = served.decode.loaded_tokens()
    assert prefill.result(ANSWER_S).body["choices"][0]["finish_reason"] == "stop"
    assert decode.result(ANSWER_S).token_ids == served.reference(PROMPT)
    assert served.decode.loaded_tokens() - before == len(PROMPT) - 1
    served.assert_at_rest(LEASE_S)
    RECORD.note("EOS as P's first token", "max_tokens 1 on P", "served remotely, right tokens")


def test_case_c05_a_decode_whose_only_token_is_eos_is_served(served: Served) -> None:
    stops = {"logit_bias": {str(eos_id()): ALWAYS}, "ignore_eos": False}
    answer, loaded = remote_answer(served, body_of(PROMPT, 1, **stops))
    assert answer.token_ids == [eos_id()]
    assert answer.body["choices"][0]["finish_reason"] == "stop"
    assert loaded == len(PROMPT) - 1
    served.assert_at_rest(LEASE_S)
    RECORD.note("EOS as D's only token", "max_tokens 1 on D", "served remotely, finish_reason stop")


def test_case_c05_control_a_prefill_that_is_not_stopped_ends_by_its_length(served: Served) -> None:
    prefill, decode = served.legs(body_of(PROMPT))
    assert prefill.result(ANSWER_S).body["choices"][0]["finish_reason"] == "length"
    assert decode.result(ANSWER_S).token_ids == served.reference(PROMPT)


SCORED = {
    "prompt_logprobs": {"prompt_logprobs": 1},
    "echo": {"echo": True, "logprobs": 1},
}


def scores(answer: Answer) -> list[float]:
    """Log-probabilities of the prompt's own tokens, the first left out, as D gives them in either form."""
    assert answer.status == 200, answer.error
    (choice,) = answer.body["choices"]
    if choice["prompt_logprobs"] is None:
        return [float(value) for value in choice["logprobs"]["token_logprobs"][1 : len(PROMPT)]]
    pairs = zip(PROMPT[1:], choice["prompt_logprobs"][1:], strict=True)
    return [float(ranked[str(token)]["logprob"]) for token, ranked in pairs]


@pytest.mark.parametrize("way", ["both servers asked", "over the proxy"])
@pytest.mark.parametrize("wish", SCORED)
def test_case_c06_scores_of_the_prompt_are_those_of_one_engine_alone(served: Served, wish: str, way: str) -> None:
    body = body_of(PROMPT, **SCORED[wish])
    alone = served.alone(body)
    answer = served.over_proxy(body).result(ANSWER_S) if way == "over the proxy" else remote_answer(served, body)[0]
    assert answer.body["choices"][0]["token_ids"] == alone.body["choices"][0]["token_ids"]
    assert scores(answer) == pytest.approx(scores(alone), abs=1e-4)
    served.assert_at_rest(0.0)
    RECORD.note(wish, way, "the values of one engine alone")


def test_case_c06_control_scores_of_another_prompt_differ(served: Served) -> None:
    other = [*PROMPT[:-2], *reversed(PROMPT[-2:])]
    mine, others = (served.alone(body_of(prompt, prompt_logprobs=1)) for prompt in (PROMPT, other))
    assert scores(mine)[-1] != pytest.approx(
        others.body["choices"][0]["prompt_logprobs"][-1][str(other[-1])]["logprob"], abs=1e-4
    )


@pytest.mark.parametrize("way", ["both servers asked", "over the proxy"])
def test_two_answers_to_one_prompt(served: Served, way: str) -> None:
    # vLLM refuses several greedy answers; the likeliest token of one is the same thing to it by another name.
    body = body_of(PROMPT, n=2, temperature=1, top_k=1)
    answer = served.over_proxy(body).result(ANSWER_S) if way == "over the proxy" else remote_answer(served, body)[0]
    assert answer.status == 200, answer.error
    assert [choice["token_ids"] for choice in answer.body["choices"]] == [served.reference(PROMPT)] * 2
    served.assert_at_rest(LEASE_S)
    RECORD.note("n=2", way, "both answers right")


def test_case_c19_one_request_id_twice_through_both_servers(served: Served) -> None:
    """Both are served as if their names were two."""
    prompts = [make_prompt(300, seed=seed) for seed in (12, 13)]
    references = [served.reference(prompt) for prompt in prompts]
    before = served.decode.loaded_tokens()
    pending = [served.over_proxy(body_of(prompt), {"X-Request-Id": "twice"}) for prompt in prompts]
    assert [request.result(ANSWER_S).token_ids for request in pending] == references
    assert served.decode.loaded_tokens() - before == sum(len(prompt) - 1 for prompt in prompts)
    served.assert_at_rest(LEASE_S)
    RECORD.note("one request id twice", "at the same time", "both served remotely, right tokens")


def test_case_c19_control_the_answers_of_two_prompts_differ(served: Served) -> None:
    first, second = (served.reference(make_prompt(300, seed=seed)) for seed in (12, 13))
    assert first != second


def test_case_c27_decode_server_that_refuses_frees_the_prefill_server(served: Served) -> None:
    """D's server answers 400 before its engine hears of the request; P is told by the router's leaving."""
    served.assert_at_rest(0.0)
    answer = served.over_proxy(body_of(LONG_PROMPT, logprobs=TOO_MANY)).result(ANSWER_S)
    answered = time.monotonic()
    assert answer.status == 400
    assert str(TOO_MANY) in answer.error
    served.prefill.wait_at_rest(LEASE_S)
    back_s = time.monotonic() - answered
    RECORD.note("D answers 400", "P prefills", "client gets the 400, P's blocks are back", back_s)
    assert back_s < LEASE_S, "the lease freed them, nobody else"
    served.assert_serves(PROMPT)


def test_case_c11_case_c27_control_without_word_the_lease_holds_the_blocks(served: Served) -> None:
    """A P that nobody tells shows its blocks as used: what the test above looks at does move."""
    params = bodies.concurrent_prefill_params("c27-control")
    body = bodies.prefill_body(body_of(PROMPT), params, chat=False)
    assert served.client.ask(served.prefill.url, body).result(ANSWER_S).status == 200
    assert not served.prefill.at_rest()
    served.assert_at_rest(LEASE_S)


def test_prompt_too_long_for_the_prefill_server(served: Served) -> None:
    """P refuses it: the client is told by the proxy, and D, asked without it, computes the prompt."""
    prompt = make_prompt(CONTEXT_TOKENS["producer"] + 10, seed=14)
    answer = served.over_proxy(body_of(prompt)).result(ANSWER_S)
    assert answer.status == 400
    assert str(CONTEXT_TOKENS["producer"]) in answer.error
    served.assert_at_rest(LEASE_S)
    RECORD.note("over-long prompt", "refused by P", "client gets P's 400 from the proxy", answer.seconds)
    prefill, decode = served.legs(body_of(prompt))
    assert prefill.result(ANSWER_S).status == 400
    answer = decode.result(ANSWER_S)
    assert answer.token_ids == served.reference(prompt)
    RECORD.note("over-long prompt", "refused by P, D asked too", "D computes the prompt itself", answer.seconds)
    assert answer.seconds > PRODUCER_TIMEOUT_S, "P was never asked: D had nothing to wait for"
    served.assert_at_rest(LEASE_S + PEER_TIMEOUT_S)


def test_prompt_too_long_for_both(served: Served) -> None:
    prompt = make_prompt(CONTEXT_TOKENS["consumer"] + 10, seed=14)
    answer = served.over_proxy(body_of(prompt)).result(ANSWER_S)
    assert answer.status == 400
    served.assert_at_rest(LEASE_S)
    RECORD.note("over-long prompt", "refused by both", "client gets a 400", answer.seconds)
    served.assert_serves(PROMPT)


def test_full_disk_under_the_timeline(served: Served) -> None:
    """D's events go to a full disk: it has served all the same, and has said so once."""
    served.assert_serves(PROMPT)
    log = served.decode.log()
    assert log.count("timeline stops here") == 1
    assert "Exception ignored" not in log
    RECORD.note("full disk", "timeline_path on D", "serving goes on, one line in the log")
