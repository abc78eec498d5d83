"""The connector in the scheduler process: decides nothing about bytes, only about requests and blocks."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from pdkv_connector.adapters.vllm import compat
from pdkv_connector.adapters.vllm.consumer_scheduler import ConsumerScheduler
from pdkv_connector.adapters.vllm.params import Broken, Consume, Probe, Produce, announcement, parse
from pdkv_connector.adapters.vllm.producer_scheduler import ProducerScheduler
from pdkv_connector.adapters.vllm.stats import PDKVStats
from pdkv_connector.adapters.vllm.stats_report import SchedulerReport
from pdkv_connector.adapters.vllm.step_plan import RankEndpoint, RankReport, StepPlan
from pdkv_connector.adapters.vllm.waiting_queue import WaitingQueue
from pdkv_connector.config import Config
from pdkv_connector.rare_log import RareLog
from pdkv_connector.telemetry.metrics import series
from pdkv_connector.telemetry.tally import Tally

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
        self._tally, self._report = Tally(), SchedulerReport()
        self._on_loss = "recomputes" if transfer.kv_load_failure_policy == "recompute" else "failed_requests"
        self._wrong_roles, self._idle_requests, self._broken = RareLog(logger), RareLog(logger), RareLog(logger)

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
            if not self._is_producer:
                self._warn_role(request, "do_remote_decode", "kv_producer")
            elif not self._producer.add(request, intent, self._plan):
                self._count_idle("repeated_id")
        elif isinstance(intent, Consume | Broken) and self._is_consumer:
            self._consumer.add(request, intent)
        elif isinstance(intent, Consume):
            self._warn_role(request, "do_remote_prefill", "kv_consumer")
        elif isinstance(intent, Broken):
            self._count_idle("bad_params")
            self._broken.error("request %s: %s: no KV is offered", request.request_id, intent.reason)
        elif intent is None and self._is_consumer and not self._is_producer:
            self._warn_decode_only(request)

    def _warn_role(self, request: Request, key: str, role: str) -> None:
        self._count_idle("wrong_role")
        self._wrong_roles.error(
            "request %s asks for %s but this engine is not a %s: no KV moves. Set kv_role to %s or kv_both",
            request.request_id, key, role, role,
        )  # fmt: skip

    def _warn_decode_only(self, request: Request) -> None:
        """Serving without transfer is legal but seldom meant: say so now and then."""
        self._count_idle("no_params")
        self._idle_requests.warning(
            "request %s has no kv_transfer_params: this decode engine prefills it itself. "
            "Is the router set up for P/D?",
            request.request_id,
        )

    def _count_idle(self, cause: str) -> None:
        self._tally.count(series("requests_without_transfer", cause))

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
        self._plan.pressed = bool(self._producer.num_leases) and self._waiting.starves
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
        if isinstance(output.kv_connector_worker_meta, RankReport):
            self._consumer.heard(output.kv_connector_worker_meta)
        for cause in self._consumer.received(set(output.finished_recving or ()), output.failed_recving):
            self._tally.count(series(self._on_loss, cause))
        self._producer.released(set(output.finished_sending or ()))

    def take_stats(self) -> PDKVStats | None:
        """What changed since the last call."""
        gauges = {"leases": self._producer.num_leases, "reserved_tokens": self._consumer.reserved_tokens}
        return self._report.take(self._tally, gauges)

    @property
    def has_news(self) -> bool:
        """True when the workers must hear something although no request runs."""
        plan = self._plan
        return bool(plan.offers or plan.finished or plan.withdrawn or plan.receives or plan.cancelled)
