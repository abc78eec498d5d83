"""Which requests the engine has yet to give blocks to: they tell when the blocks held for consumers are needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pdkv_connector.adapters.vllm import compat

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class WaitingQueue:
    """Follows the engine's own queue, the request that is next first."""

    def __init__(self, windows: Sequence[int], block_sizes: Sequence[int], blocks: compat.EngineBlocks) -> None:
        self._windows = windows
        self._block_sizes = block_sizes
        self._blocks = blocks
        self._requests: dict[str, Request] = {}
        self._waiting: OrderedDict[str, None] = OrderedDict()

    def add(self, request: Request) -> None:
        """A request arrived."""
        self._requests[request.request_id] = request
        self._waiting[request.request_id] = None

    def remove(self, request: Request) -> None:
        """A request ended."""
        self._requests.pop(request.request_id, None)
        self._waiting.pop(request.request_id, None)

    def stepped(self, output: SchedulerOutput) -> None:
        """The engine decided on a step: who is preempted waits again, in front."""
        for request_id in output.preempted_req_ids or ():
            if request_id in self._requests:
                self._waiting[request_id] = None
                self._waiting.move_to_end(request_id, last=False)

    def allocated(self, request: Request) -> None:
        """A request was given blocks, to run or to wait for its KV: vLLM says so of every one that leaves its queue."""
        self._waiting.pop(request.request_id, None)

    @property
    def starves(self) -> bool:
        """True when the request that is next needs more blocks than are free."""
        following = next(iter(self._waiting), None)
        return following is not None and self._num_blocks(self._requests[following]) > self._blocks.num_free

    def _num_blocks(self, request: Request) -> int:
        num_blocks = 0
        for window, block_size in zip(self._windows, self._block_sizes, strict=True):
            num_tokens = min(request.num_tokens, window) if window else request.num_tokens
            num_blocks += -(-num_tokens // block_size)
        return num_blocks
