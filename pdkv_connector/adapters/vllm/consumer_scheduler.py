"""Scheduler half of a decode engine: how much KV will come, and where it goes."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdkv_connector.adapters.vllm import compat
from pdkv_connector.adapters.vllm.params import OURS, Broken, Consume
from pdkv_connector.adapters.vllm.step_plan import RankReport, Receive, StepPlan
from pdkv_connector.layout.window import needed_tokens
from pdkv_connector.rare_log import RareLog
from pdkv_connector.telemetry.causes import OTHER
from pdkv_connector.types import Span, TransferId

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)

NUM_REMEMBERED = 4096
NOTHING = Span(0, 0)


@dataclass(slots=True)
class Receiving:
    """A request that wants remote KV; `asked` once, whatever came of it; `failed` until the engine looks after that.

    `loss` is why its KV does not come, as far as some rank has said.
    """

    intent: Consume | Broken
    prompt_digest: str
    asked: bool = False
    in_flight: bool = False
    failed: bool = False
    loss: str = OTHER
    digests: tuple[tuple[str, ...], tuple[str, ...]] | None = None


class ConsumerScheduler:
    """Answers vLLM's questions about external KV and turns allocations into StepPlan entries."""

    def __init__(self, windows: Sequence[int], block_sizes: Sequence[int]) -> None:
        self._windows = windows
        self._block_sizes = block_sizes
        self._receiving: dict[str, Receiving] = {}
        self._in_flight: dict[TransferId, int] = {}
        self._fetched: OrderedDict[TransferId, None] = OrderedDict()
        self._broken = RareLog(logger)

    def add(self, request: Request, intent: Consume | Broken) -> None:
        """A request arrived whose KV is somewhere else."""
        if isinstance(intent, Broken):
            self._broken.error("request %s: %s", request.request_id, intent.reason)
        self._receiving[request.request_id] = Receiving(intent, compat.prompt_digest(request))

    def num_external_tokens(self, request: Request, num_local: int) -> int | None:
        """Tokens that will come past a local hit of `num_local`; None: ask again, a sibling is fetching the same.

        The last prompt token is left out: the engine computes it in any case, to sample from it. A request that scores
        its prompt computes all of it.

        One whose KV did not come is put off once, behind those that hold blocks: vLLM has let go of its own and would
        wait for new ones in front of them, while they wait to be looked at.
        """
        receiving = self._receiving.get(request.request_id)
        if receiving is not None and receiving.failed:
            receiving.failed = False
            return None
        if receiving is None or receiving.asked or compat.scores_prompt(request):
            return 0
        if isinstance(receiving.intent, Consume):
            if receiving.intent.transfer_id in self._in_flight:
                return None
            if receiving.intent.transfer_id in self._fetched:
                return 0
        return max(0, int(request.num_prompt_tokens) - 1 - num_local)

    def allocated(self, request: Request, blocks: KVCacheBlocks, num_external: int, plan: StepPlan) -> None:
        """Blocks are there (or nothing is to come): ask the producer, once."""
        receiving = self._receiving.get(request.request_id)
        if receiving is None or receiving.asked:
            return
        receiving.asked = True
        intent = receiving.intent
        if isinstance(intent, Broken):
            if num_external:
                plan.receives.append(Receive("", request.request_id, reason=intent.reason))
            return
        if intent.transfer_id in self._fetched or intent.transfer_id in self._in_flight:
            return
        stop = request.num_prompt_tokens - 1
        hit = stop - num_external
        needs = tuple(self._needs(group, stop, hit) if num_external else NOTHING for group in range(len(self._windows)))
        block_ids = blocks.get_block_ids() if num_external else ()
        plan.receives.append(self._receive(request, receiving, needs, block_ids))
        if num_external:
            receiving.in_flight = True
            self._in_flight[intent.transfer_id] = num_external
        else:
            self._end(intent.transfer_id)

    def _needs(self, group: int, stop: int, hit: int) -> Span:
        """Tokens to fetch: those in the window, and all of the first block they begin in.

        The engine takes every block that it keeps for computed: another request may find that one in the prefix cache
        and attend to tokens in it that lie before this request's window.
        """
        size = self._block_sizes[group]
        first = needed_tokens(stop, hit, self._windows[group]).start
        return Span(max(hit, first // size * size), stop)

    def _receive(
        self, request: Request, receiving: Receiving, needs: tuple[Span, ...], block_ids: tuple[list[int], ...]
    ) -> Receive:
        intent = receiving.intent
        assert isinstance(intent, Consume)
        return Receive(
            transfer_id=intent.transfer_id,
            request_id=request.request_id,
            engine_id=intent.engine_id,
            endpoints=intent.endpoints,
            tp_size=intent.tp_size,
            num_prompt_tokens=request.num_prompt_tokens,
            prompt_digest=receiving.prompt_digest,
            needs=needs,
            blocks=tuple(list(group) for group in block_ids),
            digest=intent.digest and bool(block_ids),
        )

    @property
    def reserved_tokens(self) -> int:
        """Tokens whose blocks are allocated and whose KV is still to come."""
        return sum(self._in_flight.values())

    def received(self, request_ids: set[str], failed: Collection[str] = ()) -> list[str]:
        """The workers reported these requests, well or, if in `failed`, badly.

        Returns a cause for each request that has to do without the KV it waited for.
        """
        losses = []
        for request_id in request_ids:
            if (receiving := self._receiving.get(request_id)) is None:
                continue
            receiving.failed = request_id in failed
            losses += [receiving.loss] if receiving.failed else []
            if receiving.in_flight and isinstance(receiving.intent, Consume):
                receiving.in_flight = False
                self._end(receiving.intent.transfer_id)
        return losses

    def _end(self, transfer_id: TransferId) -> None:
        """A transfer is fetched once: siblings find its prefix cached, and compute the rest."""
        self._in_flight.pop(transfer_id, None)
        self._fetched[transfer_id] = None
        if len(self._fetched) > NUM_REMEMBERED:
            self._fetched.popitem(last=False)

    def _has_sibling(self, transfer_id: TransferId) -> bool:
        """True while some request may yet ask for this transfer, or has asked."""
        intents = (receiving.intent for receiving in self._receiving.values())
        return any(isinstance(intent, Consume) and intent.transfer_id == transfer_id for intent in intents)

    def heard(self, report: RankReport) -> None:
        """Ranks told what they know of requests: digests that were asked for, and why KV does not come."""
        for request_id, digests in report.digests.items():
            if receiving := self._receiving.get(request_id):
                receiving.digests = digests
        for request_id, loss in report.losses.items():
            if receiving := self._receiving.get(request_id):
                receiving.loss = loss

    def finish(self, request: Request, plan: StepPlan) -> dict[str, Any] | None:
        """The engine is done with a request; a transfer that nobody asked for still frees the producer's blocks.

        Returns the digests, if they were asked for and have come, in the form of `kv_transfer_params`.
        """
        receiving = self._receiving.pop(request.request_id, None)
        if receiving is None or isinstance(receiving.intent, Broken):
            return None
        transfer_id = receiving.intent.transfer_id
        if receiving.in_flight:
            self._end(transfer_id)
            plan.cancelled.append((transfer_id, f"decode request ended as {request.status.name}"))
        elif not receiving.asked and transfer_id not in self._fetched and not self._has_sibling(transfer_id):
            self._end(transfer_id)
            plan.receives.append(self._receive(request, receiving, (NOTHING,) * len(self._windows), ()))
        if receiving.digests is None:
            return None
        local, remote = receiving.digests
        return {OURS: {"transfer_id": transfer_id, "digests": list(local), "prefill_digests": list(remote)}}
