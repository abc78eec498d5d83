"""The connector in a worker process: hands the engine's steps to the runtime, and its results back."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

import torch

from pdkv_connector.adapters.vllm import compat
from pdkv_connector.adapters.vllm.kv_memory import describe, facts_of, groups_of
from pdkv_connector.adapters.vllm.step_plan import RankEndpoint, RankReport, Receive, SendStep, StepPlan
from pdkv_connector.config import Config
from pdkv_connector.errors import EngineError
from pdkv_connector.rare_log import RareLog
from pdkv_connector.runtime.hands import Event
from pdkv_connector.runtime.runtime import Runtime
from pdkv_connector.session import events as ev
from pdkv_connector.telemetry.causes import cause_of
from pdkv_connector.types import Span, TransferId

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger(__name__)


class WorkerHalf:
    """One per rank. Nothing here waits on the network."""

    def __init__(self, vllm_config: VllmConfig, kv_config: KVCacheConfig) -> None:
        transfer = vllm_config.kv_transfer_config
        assert transfer is not None
        config = Config.from_sources(transfer.kv_connector_extra_config, os.environ)
        self._config = config.with_ports_from(compat.ranks_before(vllm_config))
        self._engine_id = transfer.engine_id or ""
        self._vllm_config = vllm_config
        self._kv_config = kv_config
        self._runtime: Runtime | None = None
        self._layer_index: dict[str, int] = {}
        self._groups: tuple[int, ...] = ()
        self._by_layer = not compat.splits_batches(vllm_config)
        self._sends: list[SendStep] = []
        self._saved: set[int] = set()
        self._step_started_s = 0.0
        self._sent: dict[TransferId, str] = {}
        self._received: dict[TransferId, str] = {}
        self._refused: dict[str, str] = {}
        self._repeated_ids = RareLog(logger)
        self._report = RankReport()
        self._digesting: dict[TransferId, str] = {}

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The KV tensors exist: open the channels and start the runtime. Raises PdkvError, naming what is wrong."""
        if not kv_caches:
            raise EngineError("vLLM registered no KV tensors: models without attention KV cannot be disaggregated")
        memory = describe(kv_caches, self._kv_config, self._vllm_config.cache_config.cache_dtype)
        facts = facts_of(self._config, self._vllm_config, self._kv_config, memory)
        self._groups = groups_of(self._kv_config, memory)
        self._layer_index = {region.name: index for index, region in enumerate(memory.regions)}
        device = str(next(iter(kv_caches.values())).device)
        self._runtime = Runtime(self._config, self._engine_id, facts, memory, self._groups, device)
        self._runtime.start()
        _log_start(self._config, self._runtime.endpoint, len(facts.layers))

    @property
    def runtime(self) -> Runtime:
        """The runtime, once `register` was called."""
        if self._runtime is None:
            raise EngineError("vLLM has not registered its KV tensors yet")
        return self._runtime

    @property
    def endpoint(self) -> RankEndpoint | None:
        """Where this rank listens, once registered."""
        return RankEndpoint(self._runtime.endpoint) if self._runtime else None

    def before_blocks_change(self, plan: StepPlan) -> None:
        """Called before the step may overwrite blocks that were taken back."""
        if plan.revoked:
            self.runtime.revoke(plan.revoked)
        for expired in plan.expired:
            self.runtime.expire(*expired)

    def begin_step(self, plan: StepPlan) -> None:
        """Post the step's news before the forward pass, so that nothing waits for it."""
        self._sends = []
        self._saved = set()
        if self._runtime is None:
            return
        events: list[Event] = []
        for offer in plan.offers:
            self._sent[offer.transfer_id] = offer.request_id
            self._runtime.timeline.note("producer", "queued", offer.transfer_id)
            events.append(ev.Offered(offer.transfer_id, offer.num_prompt_tokens, offer.prompt_digest))
        self._begin_sends(plan)
        for transfer_id in plan.finished:
            self._runtime.timeline.note("producer", "finished", transfer_id)
            events.append(ev.Finished(transfer_id))
        for transfer_id, reason, holds_blocks in plan.withdrawn:
            if not holds_blocks:  # nothing will be released
                self._sent.pop(transfer_id, None)
            events.append(ev.Withdrawn(transfer_id, reason, holds_blocks))
        for receive in plan.receives:
            self._begin_receive(receive, events)
        events += [ev.Unwanted(*cancelled) for cancelled in plan.cancelled]
        events += [ev.Pressed()] if plan.pressed else []
        if events:
            self._runtime.post(events)

    def _begin_sends(self, plan: StepPlan) -> None:
        self._step_started_s = time.time()
        self._sends = plan.sends
        for send in plan.sends:
            self.runtime.tables.extend(send.transfer_id, send.new_blocks)

    def _begin_receive(self, receive: Receive, events: list[Event]) -> None:
        if receive.reason:
            self._refused[receive.request_id] = "bad_params"
            return
        if receive.transfer_id in self._received:
            self._refuse_second(receive)
            return
        if receive.blocks:
            self._received[receive.transfer_id] = receive.request_id
            if receive.digest:
                self._digesting[receive.transfer_id] = receive.request_id
            self.runtime.tables.extend(receive.transfer_id, receive.blocks)
        self.runtime.timeline.note("consumer", "registered", receive.transfer_id)
        events.append(
            ev.Wanted(
                receive.transfer_id,
                receive.engine_id,
                receive.endpoints,
                receive.tp_size,
                receive.num_prompt_tokens,
                receive.prompt_digest,
                tuple(receive.needs[group] for group in self._groups),
                receive.digest,
            )
        )

    def _refuse_second(self, receive: Receive) -> None:
        """Under one name the first one's blocks and outcome would be taken for the second's."""
        self._repeated_ids.error(
            "request %s asks for transfer %s, which request %s is fetching: its KV will not come. "
            "Routers must choose a new transfer_id for every request",
            receive.request_id, receive.transfer_id, self._received[receive.transfer_id],
        )  # fmt: skip
        if receive.blocks:
            self._refused[receive.request_id] = "repeated_id"

    def save_layer(self, layer_name: str) -> None:
        """The forward pass wrote this layer's KV (on a GPU: queued the writes on the current stream)."""
        layer = self._layer_index.get(layer_name)  # None: it reads the KV of another layer and has none of its own
        if self._sends and self._by_layer and layer is not None:
            self._saved.add(layer)
            self._post_ready(Span(layer, layer + 1))

    def end_step(self) -> None:
        """The step is over. Layers without a save hook of their own are ready now too."""
        if not self._sends:
            return
        if len(self._saved) < len(self._layer_index):
            self._post_ready(Span(0, len(self._layer_index)))
        for send in self._sends:
            if tokens := send.computed:
                self.runtime.timeline.note(
                    "producer", "chunk", send.transfer_id,
                    tokens=[tokens.start, tokens.stop], t_start=self._step_started_s, t_stop=time.time(),
                )  # fmt: skip
        self._sends = []

    def _post_ready(self, layers: Span) -> None:
        events = [ev.Ready(send.transfer_id, layers, send.ready) for send in self._sends]
        self.runtime.post(events, after=_stream_event(self.runtime.memory.tensors[layers.start]))

    def results(self, found: KVConnectorTransferResults) -> KVConnectorTransferResults:
        """Fill in what ended since the last step."""
        if self._refused:
            found.finished_recving |= self._refused.keys()
            found.failed_recving |= self._refused.keys()
            self._report.losses |= self._refused
            self._refused = {}
        outcome = self._runtime.take() if self._runtime else None
        if outcome is None:
            return found
        found.finished_sending |= _taken(self._sent, outcome.released)
        reasons = {self._received[name]: why for name, why in outcome.failed.items() if name in self._received}
        self._report.losses |= {request_id: cause_of(reason) for request_id, reason in reasons.items()}
        failed = _taken(self._received, set(outcome.failed))
        found.finished_recving |= failed | _taken(self._received, outcome.delivered)
        found.failed_recving |= failed
        for transfer_id in outcome.failed:
            self._digesting.pop(transfer_id, None)
        for transfer_id, digests in outcome.digests.items():
            if request_id := self._digesting.pop(transfer_id, None):
                self._report.digests[request_id] = digests
        return found

    def take_report(self) -> RankReport | None:
        """What has come to be known of requests since the last step, if anything."""
        if not (self._report.digests or self._report.losses):
            return None
        report, self._report = self._report, RankReport()
        return report

    def stop(self) -> None:
        """Close everything; safe to call twice."""
        if self._runtime is not None:
            self._runtime.stop()


def _taken(known: dict[TransferId, str], transfer_ids: set[TransferId]) -> set[str]:
    """The requests of these transfers, which are forgotten."""
    return {known.pop(transfer_id) for transfer_id in transfer_ids if transfer_id in known}


def _stream_event(tensor: Any) -> Any:
    """A CUDA event after the work queued so far, or None on a CPU, where the KV is written when the hook runs."""
    if tensor.device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(tensor.device))
    return event


def _log_start(config: Config, endpoint: str, num_layers: int) -> None:
    version = compat.installed_version()
    if not compat.is_tested(version):
        logger.warning("vLLM %s is outside the tested range 0.32.x; `pdkv doctor` tells more", version)
    if not config.control_is_local and not config.keys_dir:
        logger.warning(
            "control_host=%s can be reached from other machines and the control channel has no keys: anyone who "
            "reaches it can read KV; set keys_dir to a folder made by `pdkv keys create`", config.control_host,
        )  # fmt: skip
    logger.info("pdkv: %d layers, control channel on %s", num_layers, endpoint)
