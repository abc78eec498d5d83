"""`PDKVConnector`: the class vLLM loads. A facade; the halves do the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

from pdkv_connector.adapters.vllm.prometheus import PDKVPromMetrics
from pdkv_connector.adapters.vllm.scheduler_half import SchedulerHalf
from pdkv_connector.adapters.vllm.stats import PDKVStats
from pdkv_connector.adapters.vllm.stats_report import RankStats
from pdkv_connector.adapters.vllm.step_plan import RankEndpoint, RankReport, StepPlan
from pdkv_connector.adapters.vllm.worker_half import WorkerHalf

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class PDKVConnector(KVConnectorBase_V1, SupportsHMA):
    """Streams KV from prefill to decode engines. Contract: vLLM 0.32, KVConnectorBase_V1."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._scheduler: Any = None
        self._worker: Any = None
        self._rank_stats = RankStats()
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerHalf(vllm_config, kv_cache_config)
        else:
            self._worker = WorkerHalf(vllm_config, kv_cache_config)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> PDKVStats:
        return PDKVStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> PDKVPromMetrics:
        return PDKVPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True

    # -- scheduler ----------------------------------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._scheduler.bind(kv_cache_manager)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        groups: tuple[int, ...] = self._kv_cache_config.transfer_group_ids
        return groups

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        self._scheduler.meet_workers(metadata)

    def on_new_request(self, request: Request) -> None:
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        found: tuple[int | None, bool] = self._scheduler.num_new_matched_tokens(request, num_computed_tokens)
        return found

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        plan: StepPlan = self._scheduler.build_plan(scheduler_output)
        return plan

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        answer: tuple[bool, dict[str, Any] | None] = self._scheduler.request_finished(request, block_ids)
        return answer

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._scheduler.update(connector_output)

    def has_pending_push_work(self) -> bool:
        return bool(self._scheduler.has_news)

    # -- worker -------------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> RankEndpoint | None:
        endpoint: RankEndpoint | None = self._worker.endpoint
        return endpoint

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        self._worker.before_blocks_change(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._worker.begin_step(connector_metadata)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Receives were posted with the metadata; there is nothing left to start."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Requests run only when their KV is whole."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        self._worker.save_layer(layer_name)

    def wait_for_save(self) -> None:
        self._worker.end_step()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results: KVConnectorTransferResults = self._worker.results(KVConnectorTransferResults())
        return results

    def get_kv_connector_stats(self) -> PDKVStats | None:
        if self._worker is not None:
            return self._rank_stats.take(self._worker.runtime)
        stats: PDKVStats | None = self._scheduler.take_stats()
        return stats

    def build_connector_worker_meta(self) -> RankReport | None:
        report: RankReport | None = self._worker.take_report()
        return report

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.stop()
