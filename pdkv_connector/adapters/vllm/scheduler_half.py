"""The connector in the scheduler process: decides nothing about bytes, only about requests and blocks."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from pdkv_connector.adapters.vllm import compat
from pdkv_connector.adapters.vllm.consumer_scheduler import ConsumerScheduler
from pdkv_connector.adapters.vllm.params import Broken, Consume, Probe, Produce, announcement, parse
from pdkv_connector.adapters.vllm.producer_scheduler import ProducerScheduler
from pdkv_connector.adapters.vllm.step_plan import RankDigests, RankEndpoint, StepPlan
from pdkv_connector.adapters.vllm.waiting_queue import WaitingQueue
from pdkv_connector.config import Config

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)


class SchedulerHalf:
    """One per engine. Raises ConfigError or EngineError at start, never later."""

    def __init__(self, vllm_config: VllmConfig, kv_config: KVCacheConfig) -> None:
        transfer = vllm_config.kv_transfer_config
        assert transfer is not None
        assert transfer.engine_id is not None
        Config.from_sources(transfer.kv_connector_extra_config, os.environ)
        windows, block_sizes = compat.group_windows(kv_config), compat.block_sizes(kv_config)
        self._blocks = compat.EngineBlocks()
        self._producer = ProducerScheduler(windows, block_sizes, self._blocks)
        self._consumer = ConsumerScheduler(windows, block_sizes)
        self._waiting = WaitingQueue(windows, block_sizes, self._blocks)
        self._engine_id = transfer.engine_id
        self._is_producer, self._is_consumer = transfer.is_kv_producer, transfer.is_kv_consumer
        parallel = vllm_config.parallel_config
        self._tp_size, self._pp_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        self._announced: dict[str, Any] = {}
        self._plan = StepPlan()
        self._num_idle_requests = 0

    def bind(self, manager: KVCacheManager) -> None:
        """The cache manager exists now."""
        self._blocks.bind(manager)

    def meet_workers(self, endpoints: dict[tuple[int, int], RankEndpoint]) -> None:
        """Endpoints of all ranks, by (pp_rank, tp_rank)."""
        ordered = [endpoints[rank].endpoint for rank in sorted(endpoints)]
        self._announced = announcement(self._engine_id, ordered, self._tp_size, self._pp_size)

    def on_new_request(self, request: Request) -> None:
        """Read what the request asks for, and say clearly when it asks in vain."""
        self._waiting.add(request)
        intent = parse(request.kv_transfer_params)
        if isinstance(intent, Produce):
            if self._is_producer:
                self._producer.add(request, intent, self._plan)
            else:
                self._warn_role(request, "do_remote_decode", "kv_producer")
        elif isinstance(intent, Consume | Broken) and self._is_consumer:
            self._consumer.add(request, intent)
        elif isinstance(intent, Consume):
            self._warn_role(request, "do_remote_prefill", "kv_consumer")
        elif isinstance(intent, Broken):
            logger.error("request %s: %s: no KV is offered", request.request_id, intent.reason)
        elif intent is None and self._is_consumer and not self._is_producer:
            self._warn_decode_only(request)

    def _warn_role(self, request: Request, key: str, role: str) -> None:
        logger.error(
            "request %s asks for %s but this engine is not a %s: no KV moves. Set kv_role to %s or kv_both",
            request.request_id, key, role, role,
        )  # fmt: skip

    def _warn_decode_only(self, request: Request) -> None:
        """Serving without transfer is legal but seldom meant: say so at the 1st, 10th, 100th ... request."""
        self._num_idle_requests += 1
        if str(self._num_idle_requests).strip("0") == "1":
            logger.warning(
                "request %s has no kv_transfer_params: this decode engine prefills it itself (%d such so far). "
                "Is the router set up for P/D?",
                request.request_id, self._num_idle_requests,
            )  # fmt: skip

    def num_new_matched_tokens(self, request: Request, num_computed: int) -> tuple[int | None, bool]:
        """See KVConnectorBase_V1.get_num_new_matched_tokens."""
        num_tokens = self._consumer.num_external_tokens(request, num_computed)
        return num_tokens, bool(num_tokens)

    def allocated(self, request: Request, blocks: KVCacheBlocks, num_external: int) -> None:
        """See KVConnectorBase_V1.update_state_after_alloc."""
        self._waiting.allocated(request)
        self._consumer.allocated(request, blocks, num_external, self._plan)

    def build_plan(self, output: SchedulerOutput) -> StepPlan:
        """Everything the workers must know for this step."""
        self._producer.plan_step(output, self._plan)
        self._waiting.stepped(output)
        self._plan.pressed = self._producer.holds_finished and self._waiting.starves
        plan, self._plan = self._plan, StepPlan()
        return plan

    def request_finished(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """See SupportsHMA.request_finished_all_groups."""
        self._waiting.remove(request)
        if isinstance(parse(request.kv_transfer_params), Probe):
            return False, dict(self._announced)  # vLLM adds to it
        digests = self._consumer.finish(request, self._plan)
        held, params = self._producer.finish(request, block_ids, self._announced, self._plan)
        return held, params or digests

    def update(self, output: KVConnectorOutput) -> None:
        """The workers reported finished sends and receives."""
        if isinstance(output.kv_connector_worker_meta, RankDigests):
            self._consumer.digested(output.kv_connector_worker_meta)
        self._consumer.received(set(output.finished_recving or ()), output.failed_recving)
        self._producer.released(set(output.finished_sending or ()))

    @property
    def has_news(self) -> bool:
        """True when the workers must hear something although no request runs."""
        plan = self._plan
        return bool(plan.offers or plan.finished or plan.withdrawn or plan.receives or plan.cancelled)
