"""Ways in which one request's end or prefix could spoil another's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

from pdkv_connector.adapters.vllm import compat
from pdkv_connector.adapters.vllm.consumer_scheduler import ConsumerScheduler
from pdkv_connector.adapters.vllm.params import Consume, Produce, announcement
from pdkv_connector.adapters.vllm.producer_scheduler import ProducerScheduler
from pdkv_connector.adapters.vllm.step_plan import SendStep, StepPlan
from pdkv_connector.errors import TransportError
from pdkv_connector.layout.window import needed_tokens
from pdkv_connector.transport.control import ControlPlane
from pdkv_connector.types import Span
from tests.unit.adapters.engine_objects import BLOCK_SIZE, blocks, ended, first_step, idle_step, kv_config, request
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


def test_vllm_counts_a_prefix_as_cached_before_any_step_computed_it() -> None:
    """The reason for `SendStep.ready`: two requests with one prefix, scheduled for the same step."""
    init_none_hash(sha256)
    manager = KVCacheManager(kv_config(), 512, BLOCK_SIZE, BLOCK_SIZE, enable_caching=True)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    first, second = request("first", 100), request("second", 100)
    for made in (first, second):
        made._block_hasher = hasher
        made.update_block_hashes()
    assert manager.get_computed_blocks(first)[1] == 0
    manager.allocate_slots(first, 100)
    assert manager.get_computed_blocks(second)[1] == 96


def test_a_prefix_computed_in_the_same_step_is_not_sent_before_its_layer(workers: tuple[Worker, Worker]) -> None:
    """What a block held before must not travel as the prefix."""
    producer, consumer = workers
    prompt = Prompt(64)
    theirs, ours = consumer.rank.allocate(64), producer.rank.allocate(64)
    producer.rank.overwrite(ours)
    consumer.step(StepPlan(receives=[receive(prompt, producer, theirs)]))
    send = SendStep(prompt.transfer_id, Span(0, 48), Span(48, 64), ours)
    producer.half.begin_step(StepPlan(offers=[offer(prompt)], sends=[send]))
    producer.rank.fill(0, ours, prompt, Span(0, 64))
    producer.half.save_layer("layer.0")
    consumer.rank.wait_slabs(63 * 256 // 4096)
    assert [bool(consumer.rank.num_changed(layer)) for layer in range(NUM_LAYERS)] == [True, False, False, False]
    for layer in range(1, NUM_LAYERS):
        producer.rank.fill(layer, ours, prompt, Span(0, 64))
    producer.half.end_step()
    wait_until(lambda: "d" in consumer.results().finished_recving, "receive")
    for layer, group in enumerate(GROUP_OF_LAYER):
        tokens = needed_tokens(63, 0, WINDOWS[group])
        assert (consumer.rank.elements(layer, theirs, tokens) == prompt.kv(layer, tokens)).all()


@pytest.mark.parametrize(
    ("cached", "computed", "ready"),
    [
        (Span(0, 48), Span(48, 64), Span(0, 64)),
        (Span(0, 64), Span(64, 64), Span(0, 64)),
        (NOTHING, Span(32, 64), Span(32, 64)),
    ],
)
def test_what_is_ready_after_a_step(cached: Span, computed: Span, ready: Span) -> None:
    assert SendStep("t", cached, computed, ()).ready == ready


def test_micro_batches_send_at_the_end_of_the_step(workers: tuple[Worker, Worker]) -> None:
    """A save hook that speaks for half of the batch must not speak for all of it."""
    producer, _ = workers
    posted: list[object] = []
    producer.half._by_layer = False
    producer.half.runtime.post = lambda events, after=None: posted.extend(events)  # type: ignore[method-assign]
    ours, prompt = producer.rank.allocate(64), Prompt(64)
    producer.half.begin_step(StepPlan(sends=[SendStep(prompt.transfer_id, NOTHING, Span(0, 64), ours)]))
    producer.half.save_layer("layer.0")
    assert posted == []
    producer.half.end_step()
    assert [event.layers for event in posted] == [Span(0, NUM_LAYERS)]  # type: ignore[attr-defined]


def test_a_transfer_id_given_up_in_this_step_is_not_taken_again_in_it() -> None:
    """The workers would forget the second request together with the first, and never release its blocks."""
    half, plan = ProducerScheduler((0,), (BLOCK_SIZE,), compat.EngineBlocks()), StepPlan()
    first, second = request("first"), request("second")
    half.add(first, Produce("t"), plan)
    half.finish(ended(first, "FINISHED_ABORTED", 0), ([],), announcement("e", ["h:1"], 1, 1), plan)
    half.add(second, Produce("t"), plan)
    assert [each.request_id for each in plan.offers] == ["first"]
    half.add(second, Produce("t"), later := StepPlan())
    assert [each.request_id for each in later.offers] == ["second"]


def test_preempted_between_two_steps_and_aborted_before_the_next() -> None:
    half, plan = ProducerScheduler((0,), (BLOCK_SIZE,), compat.EngineBlocks()), StepPlan()
    made = request(num_tokens=40)
    half.add(made, Produce("t"), plan)
    half.plan_step(first_step(made, 0, 16, [1]), plan)
    made.num_preemptions = 1
    held, _ = half.finish(ended(made, "FINISHED_ABORTED", 0), ([],), announcement("e", ["h:1"], 1, 1), plan)
    half.plan_step(idle_step(), plan)
    assert not held
    assert plan.revoked == ["t"]


def test_a_request_that_reads_no_cache_leaves_its_siblings_transfer_alone() -> None:
    """vLLM overrules the answer for such requests: blocks are allocated with nothing to come."""
    half, plan = ConsumerScheduler((0,), (BLOCK_SIZE,)), StepPlan()
    intent = Consume("t", "e", ("h:1",), 1, False)
    fetching, other = request("fetching", 40), request("other", 40)
    half.add(fetching, intent)
    half.add(other, intent)
    half.allocated(fetching, blocks([1, 2, 3]), 39, plan)
    half.allocated(other, blocks([4, 5, 6]), 0, plan)
    assert [each.request_id for each in plan.receives] == ["fetching"]
    assert half.num_external_tokens(request("third", 40), 0) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prompts_given_as_embeddings_differ_by_their_values(dtype: torch.dtype) -> None:
    made, same, other = request("a"), request("b"), request("c")
    for each, value in ((made, 1.0), (same, 1.0), (other, 2.0)):
        each.prompt_token_ids = None
        each.prompt_embeds = torch.full((40, 8), value, dtype=dtype)
    assert compat.prompt_digest(made) == compat.prompt_digest(same)
    assert compat.prompt_digest(made) != compat.prompt_digest(other)


def dial_many(plane: ControlPlane) -> None:
    for port in range(1, 2000):
        plane.dial(f"127.0.0.1:{port}")


def test_running_out_of_sockets_is_a_transport_error() -> None:
    plane = ControlPlane("me", "127.0.0.1", 0)
    try:
        plane._context.max_sockets = 1
        with pytest.raises(TransportError, match="cannot dial"):
            dial_many(plane)
    finally:
        plane.close()
