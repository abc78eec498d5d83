"""The worker half over a real runtime: an engine's steps in, vLLM's results out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults

from pdkv_connector.adapters.vllm.step_plan import Receive, SendStep, StepPlan
from pdkv_connector.adapters.vllm.worker_half import WorkerHalf
from pdkv_connector.layout.window import needed_tokens
from pdkv_connector.types import Span
from tests.unit.adapters.engine_objects import kv_config, vllm_config
from tests.unit.adapters.worker import Worker, offer, receive
from tests.unit.runtime.prompts import GROUP_OF_LAYER, NUM_LAYERS, WINDOWS, Prompt
from tests.unit.runtime.rank import wait_until

NOTHING = Span(0, 0)


@pytest.fixture
def workers() -> Iterator[tuple[Worker, Worker]]:
    pair = Worker("cpu_amx", 32), Worker("nhd", 16)
    yield pair
    for worker in pair:
        worker.half.stop()


@pytest.mark.parametrize("hooks", [True, False], ids=["by layer", "at the end of the step"])
def test_steps_in_results_out(workers: tuple[Worker, Worker], hooks: bool) -> None:
    producer, consumer = workers
    prompt = Prompt(100)
    theirs, ours = consumer.rank.allocate(100), producer.rank.allocate(100)
    consumer.step(StepPlan(receives=[receive(prompt, producer, theirs, digest=True)]))
    half = tuple(group[:2] for group in ours), tuple(group[2:] for group in ours)
    first = SendStep(prompt.transfer_id, NOTHING, Span(0, 64), half[0])
    producer.step(StepPlan(offers=[offer(prompt)], sends=[first]), prompt, ours, hooks)
    producer.step(StepPlan(sends=[SendStep(prompt.transfer_id, NOTHING, Span(64, 100), half[1])]), prompt, ours, hooks)
    producer.step(StepPlan(finished=[prompt.transfer_id]))
    wait_until(lambda: "d" in consumer.results().finished_recving, "receive")
    wait_until(lambda: "p" in producer.results().finished_sending, "release")
    assert consumer.found.failed_recving == set()
    for layer, group in enumerate(GROUP_OF_LAYER):
        tokens = needed_tokens(99, 0, WINDOWS[group])
        assert (consumer.rank.elements(layer, theirs, tokens) == prompt.kv(layer, tokens)).all()
    wait_until(lambda: bool(consumer.results() and consumer.half._report.digests), "digests")
    report = consumer.half.take_report()
    assert report is not None
    assert report.digests["d"][0] == report.digests["d"][1] != ()
    assert consumer.half.take_report() is None


def test_a_layer_is_not_sent_before_its_hook(workers: tuple[Worker, Worker]) -> None:
    producer, consumer = workers
    prompt = Prompt(64)
    theirs, ours = consumer.rank.allocate(64), producer.rank.allocate(64)
    consumer.step(StepPlan(receives=[receive(prompt, producer, theirs)]))
    send = SendStep(prompt.transfer_id, NOTHING, Span(0, 64), ours)
    producer.half.begin_step(StepPlan(offers=[offer(prompt)], sends=[send]))
    producer.rank.fill(0, ours, prompt, Span(0, 64))
    producer.half.save_layer("layer.0")
    consumer.rank.wait_slabs(63 * 256 // 4096)
    assert [bool(consumer.rank.num_changed(layer)) for layer in range(NUM_LAYERS)] == [True, False, False, False]


def test_what_cannot_be_received_is_reported_as_failed(workers: tuple[Worker, Worker]) -> None:
    producer, consumer = workers
    prompt = Prompt(64)
    wanted = receive(prompt, producer, consumer.rank.allocate(64))
    consumer.step(StepPlan(receives=[wanted, Receive("", "broken", reason="names no transfer")]))
    consumer.results()
    assert (consumer.found.finished_recving, consumer.found.failed_recving) == ({"broken"}, {"broken"})
    consumer.step(StepPlan(cancelled=[(prompt.transfer_id, "aborted")]))
    wait_until(lambda: "d" in consumer.results().finished_recving, "failure")
    assert consumer.found.failed_recving == {"broken", "d"}


def test_a_transfer_that_is_being_fetched_is_not_fetched_for_another_request(workers: tuple[Worker, Worker]) -> None:
    """The second one's blocks were appended to the first one's, and its refusal was told as the first one's failure."""
    producer, consumer = workers
    prompt = Prompt(100)
    theirs, others = consumer.rank.allocate(100), consumer.rank.allocate(100)
    consumer.step(StepPlan(receives=[receive(prompt, producer, theirs)]))
    second, release = receive(prompt, producer, others), receive(prompt, producer, ())
    second.request_id, release.request_id, release.needs = "second", "third", (NOTHING, NOTHING)
    consumer.step(StepPlan(receives=[second, release]))
    consumer.results()
    assert (consumer.found.finished_recving, consumer.found.failed_recving) == ({"second"}, {"second"})
    ours = producer.rank.allocate(100)
    send = SendStep(prompt.transfer_id, NOTHING, Span(0, 100), ours)
    producer.step(StepPlan(offers=[offer(prompt)], sends=[send]), prompt, ours)
    wait_until(lambda: "d" in consumer.results().finished_recving, "receive")
    assert consumer.found.failed_recving == {"second"}
    for layer, group in enumerate(GROUP_OF_LAYER):
        tokens = needed_tokens(99, 0, WINDOWS[group])
        assert (consumer.rank.elements(layer, theirs, tokens) == prompt.kv(layer, tokens)).all()


@pytest.mark.parametrize(("port", "ports"), [(0, [0, 0, 0]), (5600, [5600, 5602, 5604])])
def test_data_parallel_replicas_on_one_host_listen_on_ports_of_their_own(port: int, ports: list[int]) -> None:
    """The second could not start: its first rank took the port of the first one's."""
    replicas = [vllm_config("kv_producer", tp_size=2, dp_index=index, control_port=port) for index in range(3)]
    assert [WorkerHalf(replica, kv_config())._config.control_port for replica in replicas] == ports


def test_case_c02_a_request_that_fetched_nothing_is_released_all_the_same(workers: tuple[Worker, Worker]) -> None:
    producer, consumer = workers
    prompt = Prompt(64)
    ours = producer.rank.allocate(64)
    send = SendStep(prompt.transfer_id, NOTHING, Span(0, 64), ours)
    producer.step(StepPlan(offers=[offer(prompt)], sends=[send]), prompt, ours)
    producer.step(StepPlan(finished=[prompt.transfer_id]))
    nothing = receive(prompt, producer, ())
    nothing.needs = (NOTHING, NOTHING)
    consumer.step(StepPlan(receives=[nothing]))
    wait_until(lambda: "p" in producer.results().finished_sending, "release")
    consumer.results()
    assert consumer.found.finished_recving == set()


def test_a_prefill_request_aborted_in_the_queue_leaves_nothing_behind(workers: tuple[Worker, Worker]) -> None:
    producer, _ = workers
    prompt = Prompt(64)
    producer.step(StepPlan(offers=[offer(prompt)]))
    producer.step(StepPlan(withdrawn=[(prompt.transfer_id, "aborted", False)]))
    assert producer.half._sent == {}
    assert producer.results().finished_sending == set()


def test_stopping_twice_or_unregistered(workers: tuple[Worker, Worker]) -> None:
    workers[0].half.stop()
    workers[0].half.stop()
    idle = WorkerHalf(vllm_config("kv_both"), kv_config())
    idle.begin_step(StepPlan())
    idle.end_step()
    assert idle.endpoint is None
    assert idle.results(KVConnectorTransferResults()) == KVConnectorTransferResults()
    idle.stop()
