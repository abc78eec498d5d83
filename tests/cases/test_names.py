"""C18, C19: who is meant, when engines rename requests, clients repeat names, and engines share one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm.v1.engine.input_processor import InputProcessor

from pdkv_connector.adapters.vllm.consumer_scheduler import ConsumerScheduler
from pdkv_connector.adapters.vllm.params import Produce
from pdkv_connector.adapters.vllm.producer_scheduler import ProducerScheduler
from pdkv_connector.session import events as ev
from pdkv_connector.session.consumer import ConsumerSession
from pdkv_connector.session.producer import ProducerSession
from pdkv_connector.session.producer_book import ProducerBook
from tests.cases.pair import DECODED, Pair, new_transfer_id
from tests.cases.planted import caught, nothing, plant
from tests.cases.text import Text
from tests.unit.adapters import test_producer_scheduler as producer
from tests.unit.runtime.conftest import OpenRank
from tests.unit.runtime.prompts import Prompt
from tests.unit.runtime.roles import Decode, Prefill


def test_case_c18_engines_that_rename_a_request_agree_on_its_transfer(pair: Pair) -> None:
    """vllm#38816: each engine adds a random suffix to the request's id. KV named by it was never found."""
    text, transfer_id = Text(50), new_transfer_id()
    on_prefill = pair.ask_prefill(text, transfer_id, name="cmpl-router-1")
    on_decode = pair.ask_decode(text, transfer_id, name="cmpl-router-1")
    assert on_prefill != on_decode, "vLLM adds no suffix any more: this test shows nothing"
    pair.until_answered(on_decode)
    assert pair.decode.num_computed[on_decode] == DECODED


def test_case_c19_requests_of_one_name_stay_apart(pair: Pair) -> None:
    """vllm#10583: a client sent a request id twice. Both of a name get their own KV."""
    asked = [(Text(length), new_transfer_id()) for length in (50, 70)]
    made = [pair.ask_decode(text, transfer_id, name="same") for text, transfer_id in asked]
    for text, transfer_id in asked:
        pair.ask_prefill(text, transfer_id, name="same")
    pair.until(lambda: set(made) <= pair.decode.answers.keys(), "answers of the decode engine")
    assert [pair.decode.num_computed[request_id] for request_id in made] == [DECODED, DECODED]
    pair.until_released()


def test_case_c19_engines_of_one_engine_id_are_not_confused(open_rank: OpenRank) -> None:
    """Two data-parallel ranks had one engine id, and peers that knew them by it asked the wrong one."""
    prefills = [Prefill(open_rank("nhd")) for _ in range(2)]
    decodes = [Decode(open_rank("nhd")) for _ in range(2)]
    prompts = [Prompt(90 + number) for number in range(4)]
    for number, prompt in enumerate(prompts):
        decodes[number // 2].want(prompt, prefills[number % 2], engine_id="nhd")
        prefills[number % 2].run(prompt)
    for number, decode in enumerate(decodes):
        decode.rank.wait_delivered(*prompts[2 * number : 2 * number + 2])
        assert decode.faults() == []
    for number, prefill in enumerate(prefills):
        prefill.rank.wait_released(*prompts[number::2])


def test_case_c19_a_transfer_id_that_was_used_before_is_refused(prefill: Prefill, decode: Decode) -> None:
    """The one sure answer: the KV of either prompt could be meant."""
    old = Prompt(50)
    prefill.run(old)
    decode.want(old, prefill)
    decode.rank.wait_delivered(old)
    prefill.rank.wait_released(old)
    new = Prompt(60, old.transfer_id)
    prefill.rank.outcome.released.clear()
    del prefill.blocks[old.transfer_id]
    prefill.run(new)
    prefill.rank.wait_released(new)
    decode.want(new, prefill)
    assert "refused: transfer ended" in decode.rank.wait_failed(new)


# -- the wrong outcomes -----------------------------------------------------------------------------------------------


def _offer_by_request_id(original: Any) -> Any:
    return lambda self, request, _intent, plan: original(self, request, Produce(request.request_id), plan)


def _offer_under_one_name(original: Any) -> Any:
    return lambda self, request, _intent, plan: original(self, request, Produce("unnamed"), plan)


def _fetch_by_request_id(original: Any) -> Any:
    return lambda self, request, intent: original(self, request, replace(intent, transfer_id=request.request_id))


def _take_any_name(original: Any) -> Any:
    def add(self: ProducerScheduler, request: Any, intent: Produce, plan: Any) -> None:
        self._by_transfer.pop(intent.transfer_id, None)
        original(self, request, intent, plan)

    return add


def _one_address_for_an_engine_id(original: Any) -> Any:
    def plan(self: Any, wanted: ev.Wanted) -> Any:
        known = vars(self).setdefault("known", {})
        return original(self, replace(wanted, endpoints=known.setdefault(wanted.engine_id, wanted.endpoints)))

    return plan


def _one_peer_for_an_engine_id(original: Any) -> Any:
    def handle(self: Any, event: Any, now: float) -> Any:
        return original(self, replace(event, peer="from:D") if isinstance(event, ev.Heard) else event, now)

    return handle


def test_case_c18_control_transfers_named_by_request(pair: Pair) -> None:
    by_request_id = (
        plant(ProducerScheduler, "add", _offer_by_request_id),
        plant(ConsumerScheduler, "add", _fetch_by_request_id),
    )
    with caught("no answer of the decode engine", *by_request_id):
        test_case_c18_engines_that_rename_a_request_agree_on_its_transfer(pair)


def test_case_c18_control_an_offer_without_a_name() -> None:
    with caught("unnamed", plant(ProducerScheduler, "add", _offer_under_one_name)):
        producer.test_case_c18_without_a_transfer_id_the_engine_names_one(producer.Engine())


def test_case_c19_control_the_engine_takes_names_as_they_come(pair: Pair) -> None:
    with caught("duplicate request id", plant(InputProcessor, "assign_request_id", lambda _: staticmethod(nothing(_)))):
        test_case_c19_requests_of_one_name_stay_apart(pair)


def test_case_c19_control_peers_known_by_engine_id(open_rank: OpenRank) -> None:
    with caught("no delivery", plant(ConsumerSession, "_plan", _one_address_for_an_engine_id)):
        test_case_c19_engines_of_one_engine_id_are_not_confused(open_rank)
    with caught("no delivery", plant(ProducerSession, "handle", _one_peer_for_an_engine_id)):
        test_case_c19_engines_of_one_engine_id_are_not_confused(open_rank)


def test_case_c19_control_a_name_in_use_is_offered_again(caplog: pytest.LogCaptureFixture) -> None:
    with caught("which request first is using", plant(ProducerScheduler, "add", _take_any_name)):
        producer.test_case_c19_a_transfer_id_in_use_is_not_offered_twice(producer.Engine(), caplog)


def test_case_c19_control_a_used_name_is_served_again(prefill: Prefill, decode: Decode) -> None:
    with caught("no release of", plant(ProducerBook, "bury", nothing)):
        test_case_c19_a_transfer_id_that_was_used_before_is_refused(prefill, decode)
