"""What cannot be transferred is recomputed or refused with a reason; never a hang, never wrong tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.rig.dialect import Params
from tests.engines.rig.pair import EnginePair, new_transfer_id
from tests.engines.rig.testbed import MAX_TOKENS, Testbed, assert_released, assert_serves, make_prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NUM_TOKENS = 300
RECOMPUTED = NUM_TOKENS + MAX_TOKENS - 1
TEST_NET = "192.0.2.1:9"


def edited(params: Params, **pdkv: Any) -> Params:
    """The same params with some of our keys replaced, or removed where the value is None."""
    ours = {**params["pdkv"], **pdkv}
    return {**params, "pdkv": {key: value for key, value in ours.items() if value is not None}}


BAD_PARAMS: dict[str, Callable[[Params], Params]] = {
    "no_pdkv": lambda params: {key: value for key, value in params.items() if key != "pdkv"},
    "pdkv_is_text": lambda params: {**params, "pdkv": "yes"},
    "pdkv_is_empty": lambda params: {**params, "pdkv": {}},
    "no_transfer_id": lambda params: edited(params, transfer_id=None),
    "transfer_id_is_a_number": lambda params: edited(params, transfer_id=7),
    "no_endpoints": lambda params: edited(params, endpoints=None),
    "endpoints_empty": lambda params: edited(params, endpoints=[]),
    "endpoint_malformed": lambda params: edited(params, endpoints=["nowhere"]),
    "endpoint_closed": lambda params: edited(params, endpoints=["127.0.0.1:1"]),
    "host_unreachable": lambda params: edited(params, endpoints=[TEST_NET]),
    "another_engine": lambda params: {**params, "remote_engine_id": "not-this-one"},
    "tp_size_is_zero": lambda params: edited(params, tp_size=0),
}


def test_prefill_never_comes(ours: Testbed, smollm: EnginePair) -> None:
    prompt = make_prompt(NUM_TOKENS)
    reference = ours.reference(smollm.decode, prompt)
    transfer_id = new_transfer_id("orphan")
    decode = smollm.decode.wait(smollm.submit_decode(prompt, MAX_TOKENS, transfer_id))
    assert decode.token_ids == reference
    assert decode.num_computed == RECOMPUTED
    assert ours.timeline(smollm.decode).reasons(transfer_id)
    assert_released(smollm.decode)
    assert_serves(ours, smollm)


@pytest.mark.parametrize("fault", BAD_PARAMS)
def test_bad_params_on_decode_are_recomputed(ours: Testbed, smollm: EnginePair, fault: str) -> None:
    prompt = make_prompt(NUM_TOKENS)
    reference = ours.reference(smollm.decode, prompt)
    params = BAD_PARAMS[fault](smollm.consumer_params(new_transfer_id(fault)))
    decode = smollm.decode.generate(prompt, MAX_TOKENS, params)
    assert decode.token_ids == reference
    assert decode.num_computed == RECOMPUTED
    assert_released(smollm.decode)


@pytest.mark.parametrize("pdkv", [None, "yes", {}, {"transfer_id": 7}, {"transfer_id": ""}], ids=repr)
def test_bad_params_on_prefill_do_no_harm(ours: Testbed, smollm: EnginePair, pdkv: object) -> None:
    params = {"do_remote_decode": True, "do_remote_prefill": False, **({} if pdkv is None else {"pdkv": pdkv})}
    prefill = smollm.prefill.generate(make_prompt(NUM_TOKENS), 1, params)
    assert prefill.finish_reason == "length"
    assert_released(smollm.prefill)


def test_the_service_lives_on_after_bad_params(ours: Testbed, smollm: EnginePair) -> None:
    assert_serves(ours, smollm)


def test_policy_fail_gives_an_error(ours: Testbed) -> None:
    strict = ours.spec("consumer", "smollm2", label="strict", policy="fail")
    pair = ours.pair(ours.spec("producer", "smollm2"), strict)
    transfer_id = new_transfer_id("orphan")
    decode = pair.decode.wait(pair.submit_decode(make_prompt(NUM_TOKENS), MAX_TOKENS, transfer_id))
    assert decode.finish_reason == "error"
    assert decode.token_ids == []
    assert ours.timeline(pair.decode).reasons(transfer_id)
    assert_released(pair.decode)
    assert_serves(ours, pair)


def test_prefill_engine_dies_during_transfer(ours: Testbed) -> None:
    """SIGKILL in the middle: D recomputes, frees everything, and goes on with another producer."""
    prompt = make_prompt(2500)
    mortal = ours.pair(ours.spec("producer", "smollm2", label="mortal"), ours.spec("consumer", "smollm2"))
    reference = ours.reference(mortal.decode, prompt)
    ticket = mortal.start(prompt, MAX_TOKENS, "concurrent")
    ours.timeline(mortal.decode).wait_for(ticket.transfer_id, "landed")
    assert not mortal.prefill.ended(ticket.on_prefill), "P had finished: the kill came too late to test anything"
    mortal.prefill.process.kill()
    decode = mortal.decode.wait(ticket.decoding())
    assert decode.token_ids == reference
    assert ours.timeline(mortal.decode).reasons(ticket.transfer_id)
    assert_released(mortal.decode)
    assert_serves(ours, ours.default_pair("smollm2"))
