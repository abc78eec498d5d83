"""C02, C08, C11, C27: blocks of the prefill engine come back, whatever happens on the other side, and at once."""

from __future__ import annotations

import time
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequest

from pdkv_connector.adapters.vllm.consumer_scheduler import ConsumerScheduler
from pdkv_connector.adapters.vllm.producer_scheduler import ProducerScheduler
from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.session.leases import Leases
from pdkv_connector.session.producer import ProducerSession
from tests.cases.conftest import OpenPair
from tests.cases.pair import DECODED, Pair, new_transfer_id
from tests.cases.planted import caught, nothing, plant
from tests.cases.test_full_hits import say_nothing_of_full_hits
from tests.cases.text import Text
from tests.unit.adapters import test_producer_scheduler as producer
from tests.unit.adapters.engine_objects import ended, first_step, idle_step, request
from tests.unit.session.dialogue import LEASE_OVER_S, NUM_TOKENS, TIMING, Prefill, of, register


def test_case_c02_a_prompt_of_one_token_frees_the_prefill_engine(pair: Pair) -> None:
    """vllm#18590: a request that had nothing to fetch was left out of the metadata, and its release with it."""
    text, transfer_id = Text(1), new_transfer_id()
    pair.ask_prefill(text, transfer_id)
    made = pair.ask_decode(text, transfer_id)
    pair.until_begun(made)
    pair.until_prefill_is_free()
    pair.until_answered(made)
    assert pair.decode.num_computed[made] == DECODED


@pytest.mark.parametrize("came", [False, True], ids=["nobody came", "came and fell silent"])
def test_case_c08_a_lease_ends_by_itself_behind_one_that_is_renewed(came: bool) -> None:
    """vllm#58222: leases were scanned in order of arrival up to the first that lives; a renewed one hid all others."""
    prefill = Prefill()
    prefill.session.handle(ev.Offered("late", NUM_TOKENS, "digest"), 0.0)
    for transfer_id in ("t", "late") if came else ("t",):
        prefill.hear(msg.Register(transfer_id, 1, NUM_TOKENS, "digest", 1, register().wants, ()))
    for transfer_id in ("t", "late"):
        prefill.session.handle(ev.Finished(transfer_id), 0.0)
    released = {}
    for now in range(0, int(3 * TIMING.lease_s), 5):
        if now < 2 * TIMING.lease_s:
            prefill.hear(msg.Heartbeat((("t", 1),)), float(now))
        for release in of(act.Release, prefill.session.tick(float(now))):
            released[release.transfer_id] = float(now)
    assert released.keys() == {"late"}
    assert TIMING.lease_s < released["late"] <= TIMING.lease_s + 5
    last = of(act.Release, prefill.session.tick(2 * TIMING.lease_s + LEASE_OVER_S))
    assert [release.transfer_id for release in last] == ["t"]


def test_case_c11_an_abort_after_the_prefill_leaves_the_kv_to_its_consumer(pair: Pair) -> None:
    """vllm#25067: a client that left as the prefill finished freed blocks that were on offer; their release at the end
    of the lease then named a request that nobody knew, and the engine died.
    """
    text = Text(100)
    prefill_id = pair.ask_prefill(text)
    params = pair.params_of(prefill_id)
    pair.prefill.abort(prefill_id)
    assert pair.prefill.num_free < pair.prefill.num_blocks
    made = pair.decode.add(text, params, max_tokens=3)
    pair.until_answered(made)
    assert pair.decode.num_computed[made] == DECODED
    pair.until_released()


def test_case_c11_an_abort_after_the_prefill_leaves_the_rest_to_the_lease(open_pair: OpenPair) -> None:
    pair = open_pair({"lease_s": 1})
    prefill_id = pair.ask_prefill(Text(100))
    pair.params_of(prefill_id)
    pair.prefill.abort(prefill_id)
    pair.until_released()


def test_case_c11_an_engine_that_says_it_twice_is_told_the_same() -> None:
    """Older engines pass such an abort on."""
    engine, made = producer.Engine(), request(num_tokens=40)
    engine.add(made)
    engine.step(first_step(made, 0, 40, [1, 2, 3]))
    assert engine.finish(ended(made, "FINISHED_STOPPED", 40))[0]
    assert engine.finish(ended(made, "FINISHED_ABORTED", 40)) == (True, None)
    plan = engine.step(idle_step())
    assert (plan.finished, plan.withdrawn) == (["t"], [])
    engine.half.released({"r"})
    assert engine.finish(made) == (False, None)


def test_case_c27_a_request_refused_at_the_door_frees_the_prefill_engine(pair: Pair) -> None:
    """vllm#41269: the decode engine's front refused a request; its blocks stayed on the prefill engine for minutes.

    vLLM submits a stand-in that is aborted before it is scheduled. The lease is an hour here.
    """
    params = pair.params_of(pair.ask_prefill(Text(100)))
    stand_in = EngineCoreRequest(
        request_id="cmpl", prompt_token_ids=[0], mm_features=None,
        sampling_params=SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": params}), pooling_params=None,
        arrival_time=time.time(), lora_request=None, cache_salt=None, data_parallel_rank=None, abort_immediately=True,
    )  # fmt: skip
    pair.decode.admit(stand_in, Text(1))
    pair.until_released()


def test_case_c27_a_client_that_leaves_while_it_waits_for_blocks_frees_the_prefill_engine(open_pair: OpenPair) -> None:
    pair = open_pair(None, {"num_blocks": 10})
    busy = pair.decode.add(Text(60), max_tokens=400)
    pair.until_begun(busy)
    text, transfer_id = Text(100), new_transfer_id()
    pair.ask_prefill(text, transfer_id)
    waiting = pair.ask_decode(text, transfer_id)
    pair.until(lambda: not pair.prefill.scheduler.running, "end of the prefill")
    assert pair.decode.status(waiting) == "WAITING"
    pair.decode.abort(waiting)
    pair.decode.step()
    pair.until_prefill_is_free()
    pair.decode.abort(busy)


def test_case_c27_a_request_refused_before_its_prefill_came_holds_nothing(pair: Pair) -> None:
    """Both engines are asked at once, and the refusal is the faster."""
    text, transfer_id = Text(100), new_transfer_id()
    pair.decode.abort(pair.ask_decode(text, transfer_id))
    pair.until(lambda: not pair.decode.scheduler.has_requests(), "end of the refused request")
    pair.prefill.step()
    time.sleep(0.1)
    prefill_id = pair.ask_prefill(text, transfer_id)
    pair.until(lambda: prefill_id in pair.prefill.answers, "answer of the prefill engine")
    pair.until_released()


# -- the wrong outcomes -----------------------------------------------------------------------------------------------


def _stop_at_the_first_that_lives(_original: Any) -> Any:
    def tick(self: ProducerSession, now: float) -> list[act.Action]:
        for transfer in list(self.transfers.values()):
            self.leases.expire(transfer, now)
            if transfer.transfer_id in self.transfers:
                break
        return self._flush(now)

    return tick


def _free_at_any_abort(original: Any) -> Any:
    def finish_requests(self: Scheduler, request_ids: str, status: Any) -> Any:
        held = self.requests.get(request_ids)
        if held is not None and held.is_finished():
            self._free_blocks(held)
        return original(self, request_ids, status)

    return finish_requests


def _forget_what_has_finished(original: Any) -> Any:
    def finish(self: ProducerScheduler, made: Any, *rest: Any) -> Any:
        return original(self, made, *rest) if made.request_id in self._sending else (False, None)

    return finish


def test_case_c02_control_nothing_to_fetch_is_nothing_to_say(pair: Pair) -> None:
    with caught("no release of the prefill", plant(ConsumerScheduler, "allocated", say_nothing_of_full_hits)):
        test_case_c02_a_prompt_of_one_token_frees_the_prefill_engine(pair)


@pytest.mark.parametrize("came", [False, True])
def test_case_c08_control_a_renewed_lease_hides_the_others(came: bool) -> None:
    with caught("late", plant(ProducerSession, "tick", _stop_at_the_first_that_lives)):
        test_case_c08_a_lease_ends_by_itself_behind_one_that_is_renewed(came)


def test_case_c11_control_the_abort_frees_what_is_on_offer(pair: Pair) -> None:
    with caught("no release of all blocks", plant(Scheduler, "finish_requests", _free_at_any_abort)):
        test_case_c11_an_abort_after_the_prefill_leaves_the_kv_to_its_consumer(pair)


def test_case_c11_control_leases_do_not_end(open_pair: OpenPair) -> None:
    with caught("no release of all blocks", plant(Leases, "expire", nothing)):
        test_case_c11_an_abort_after_the_prefill_leaves_the_rest_to_the_lease(open_pair)


def test_case_c11_control_an_unknown_request_holds_nothing() -> None:
    with caught(r"\(False, None\) == \(True, None\)", plant(ProducerScheduler, "finish", _forget_what_has_finished)):
        test_case_c11_an_engine_that_says_it_twice_is_told_the_same()


def test_case_c27_control_a_refusal_is_not_told(open_pair: OpenPair) -> None:
    fault = plant(ConsumerScheduler, "finish", nothing)
    with caught("no release of all blocks", fault):
        test_case_c27_a_request_refused_at_the_door_frees_the_prefill_engine(open_pair())
    with caught("no release of the prefill", fault):
        test_case_c27_a_client_that_leaves_while_it_waits_for_blocks_frees_the_prefill_engine(open_pair)
    with caught("no release of all blocks", fault):
        test_case_c27_a_request_refused_before_its_prefill_came_holds_nothing(open_pair())
