"""An engine's block pool, and what a rank has in the blocks: both engines run out of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pdkv_connector.types import Span
from tests.simulator.scenario import BLOCK_TOKENS
from tests.simulator.violation import require

Blocks = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Waiting:
    """A request that waits for blocks."""

    num_blocks: int
    granted: Callable[[Blocks], None]


class BlockPool:
    """First come, first served; what was freed last is handed out first, so that whoever still uses it is seen."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.waiting: deque[Waiting] = deque()

    def ask(self, num_blocks: int, granted: Callable[[Blocks], None]) -> Waiting:
        """Call `granted` with the blocks, now or when others have given enough back."""
        waiting = Waiting(num_blocks, granted)
        self.waiting.append(waiting)
        self._serve()
        return waiting

    def leave(self, waiting: Waiting) -> bool:
        """Stop waiting; False when it was served already."""
        if waiting not in self.waiting:
            return False
        self.waiting.remove(waiting)
        self._serve()
        return True

    def give_back(self, blocks: Blocks) -> None:
        """The engine is done with these."""
        require(not set(blocks) & set(self.free), "d", f"blocks {blocks} are freed twice")
        self.free += blocks
        self._serve()

    def _serve(self) -> None:
        while self.waiting and self.waiting[0].num_blocks <= len(self.free):
            first = self.waiting.popleft()
            blocks = tuple(self.free.pop() for _ in range(first.num_blocks))
            first.granted(blocks)


class BlockMemory:
    """Whose KV lies in each block of one rank."""

    def __init__(self) -> None:
        self._owner: dict[int, str] = {}

    def take(self, transfer_id: str, blocks: Blocks) -> None:
        """From now on the blocks are this request's, whoever had them before."""
        for block in blocks:
            self._owner[block] = transfer_id

    def owns(self, transfer_id: str, blocks: Blocks, tokens: Span) -> bool:
        """True while the blocks of these tokens are this request's."""
        if not tokens:
            return True
        inside = blocks[tokens.start // BLOCK_TOKENS : -(-tokens.stop // BLOCK_TOKENS)]
        return bool(inside) and all(self._owner.get(block) == transfer_id for block in inside)
