"""Scheduler half of a prefill engine: follows each request whose KV a consumer will fetch."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pdkv_connector.adapters.vllm import compat
from pdkv_connector.adapters.vllm.params import Produce, offer
from pdkv_connector.adapters.vllm.step_plan import Offer, SendStep, StepPlan
from pdkv_connector.layout.window import needed_tokens
from pdkv_connector.rare_log import RareLog
from pdkv_connector.runtime.block_tables import GONE
from pdkv_connector.types import Span, TransferId

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Sending:
    """A tracked request; `started` once the engine gave it blocks that it kept since, `num_blocks` in each group."""

    transfer_id: TransferId
    request: Request
    started: bool = False
    num_preemptions: int = 0
    pinned: bool = False
    num_blocks: list[int] = field(default_factory=list)


class ProducerScheduler:
    """Turns the engine's scheduling into StepPlan entries."""

    def __init__(self, windows: Sequence[int], block_sizes: Sequence[int], blocks: compat.EngineBlocks) -> None:
        self._windows = windows
        self._block_sizes = block_sizes
        self._blocks = blocks
        self._sending: dict[str, Sending] = {}
        self._by_transfer: dict[TransferId, str] = {}
        self._repeated_ids = RareLog(logger)

    @property
    def num_leases(self) -> int:
        """Finished requests whose blocks wait for release."""
        return len(self._by_transfer) - len(self._sending)

    def add(self, request: Request, intent: Produce, plan: StepPlan) -> bool:
        """A request arrived that a consumer will ask for; False when its transfer is another request's."""
        transfer_id = intent.transfer_id or uuid.uuid4().hex
        withdrawn = any(transfer_id == ending for ending, _, _ in plan.withdrawn)  # the workers have yet to hear of it
        if withdrawn or transfer_id in self._by_transfer:
            self._repeated_ids.error(
                "request %s names transfer %s, which request %s is using: its KV will not be offered. "
                "Routers must choose a new transfer_id for every request",
                request.request_id, transfer_id, self._by_transfer.get(transfer_id, "(ended)"),
            )  # fmt: skip
            return False
        self._sending[request.request_id] = Sending(transfer_id, request)
        self._by_transfer[transfer_id] = request.request_id
        plan.offers.append(
            Offer(transfer_id, request.request_id, request.num_prompt_tokens, compat.prompt_digest(request))
        )
        return True

    def plan_step(self, output: SchedulerOutput, plan: StepPlan) -> None:
        """Note which tokens of which tracked request this step computes, and which requests lost their blocks."""
        if not self._sending:
            return
        for tracked in self._sending.values():
            _note_preempted(tracked, plan)
        for new in output.scheduled_new_reqs:
            if sending := self._sending.get(new.req_id):
                self._add_step(sending, new.num_computed_tokens, new.block_ids, output, plan)
        cached = output.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            if sending := self._sending.get(request_id):
                blocks = cached.new_block_ids[index] or ()
                self._add_step(sending, cached.num_computed_tokens[index], blocks, output, plan)

    def _add_step(
        self,
        sending: Sending,
        num_computed: int,
        new_blocks: tuple[list[int], ...],
        output: SchedulerOutput,
        plan: StepPlan,
    ) -> None:
        request = sending.request
        prompt = Span(0, request.num_prompt_tokens)
        computed = Span(num_computed, num_computed + output.num_scheduled_tokens[request.request_id]) & prompt
        cached = Span(0, 0) if sending.started else Span(0, num_computed) & prompt
        sending.started = True
        if computed or cached:
            plan.sends.append(SendStep(sending.transfer_id, cached, computed, self._kept(sending, new_blocks)))
        if computed.stop >= prompt.stop and not sending.pinned:
            self._pin_window_start(sending)
        if num_computed >= prompt.stop:
            self._note_expired(sending, num_computed, plan)

    def _first_kept(self, sending: Sending, group: int) -> int:
        """The block in which a group's window begins, as the last token of the prompt sees it."""
        first = needed_tokens(sending.request.num_prompt_tokens - 1, 0, self._windows[group]).start
        return first // self._block_sizes[group]

    def _kept(self, sending: Sending, new_blocks: tuple[list[int], ...]) -> tuple[list[int], ...]:
        """New blocks, without those that a window leaves before the prompt ends: the engine gives them to others.

        A request that is resumed while it decodes has left more of them behind.
        """
        sending.num_blocks = sending.num_blocks or [0] * len(self._windows)
        kept = []
        for group, blocks in enumerate(new_blocks):
            num_gone = max(0, self._first_kept(sending, group) - sending.num_blocks[group])
            held = [GONE if block == compat.NULL_BLOCK else block for block in blocks[num_gone:]]
            kept.append([GONE] * min(num_gone, len(blocks)) + held)
            sending.num_blocks[group] += len(blocks)
        return tuple(kept)

    def _pin_window_start(self, sending: Sending) -> None:
        """The engine frees a window's oldest block as a request finishes, one token before its consumer lets go."""
        sending.pinned = True
        places = [(group, self._first_kept(sending, group)) for group, window in enumerate(self._windows) if window]
        if places:
            self._blocks.pin(sending.request.request_id, places)

    def _note_expired(self, sending: Sending, num_computed: int, plan: StepPlan) -> None:
        """A prefill request that goes on decoding slides its windows past the prompt; the pinned block stays."""
        for group, window in enumerate(self._windows):
            if not window:
                continue
            first_kept = max(0, num_computed - window + 1) // self._block_sizes[group]
            if first_kept > self._first_kept(sending, group) + 1:
                plan.expired.append((sending.transfer_id, group, first_kept))

    def finish(
        self, request: Request, block_ids: tuple[list[int], ...], announced: dict[str, Any], plan: StepPlan
    ) -> tuple[bool, dict[str, Any] | None]:
        """The engine is done with a request: keep its blocks until they are released, or give the transfer up.

        Saying so again, as when a client leaves once its prefill is done, changes nothing.
        """
        sending = self._sending.pop(request.request_id, None)
        if sending is None:
            return request.request_id in self._by_transfer.values(), None
        _note_preempted(sending, plan)
        transfer_id = sending.transfer_id
        if compat.succeeded(request):
            self._note_expired(sending, request.num_computed_tokens, plan)
            plan.finished.append(transfer_id)
            return True, offer(announced, transfer_id, request.request_id, block_ids, request.num_prompt_tokens)
        holds = sending.started
        plan.withdrawn.append((transfer_id, f"prefill request ended as {request.status.name}", holds))
        if not holds:
            self.released({request.request_id})
        return holds, None

    def released(self, request_ids: set[str]) -> None:
        """Blocks of these requests went back to the engine."""
        for request_id in request_ids:
            self._blocks.release(request_id)
        gone = [transfer for transfer, request_id in self._by_transfer.items() if request_id in request_ids]
        for transfer in gone:
            del self._by_transfer[transfer]


def _note_preempted(sending: Sending, plan: StepPlan) -> None:
    """Counted, not read from the status: a request can be preempted and resumed before the next plan is built."""
    if sending.request.num_preemptions != sending.num_preemptions:
        sending.num_preemptions = sending.request.num_preemptions
        sending.started = sending.pinned = False
        sending.num_blocks = []
        plan.revoked.append(sending.transfer_id)
