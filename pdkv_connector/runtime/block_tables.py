"""Which blocks hold a transfer's tokens, per KV cache group, as the engine last said."""

from __future__ import annotations

from collections.abc import Sequence

from pdkv_connector.types import TransferId

BlockIds = list[int]
GONE = -1


class BlockTables:
    """Written by the engine's thread, read by the runtime's. Appending is safe at any time; `expire` and `drop` need
    the runtime's lock, because a gather must never read a block that the engine has taken back.
    """

    def __init__(self, group_of_layer: Sequence[int]) -> None:
        self._group_of_layer = tuple(group_of_layer)
        self._tables: dict[TransferId, list[BlockIds]] = {}

    def extend(self, transfer_id: TransferId, block_ids: Sequence[Sequence[int]]) -> None:
        """Append newly allocated blocks, one sequence per group."""
        tables = self._tables.get(transfer_id)
        if tables is None:
            tables = self._tables[transfer_id] = [[] for _ in range(max(self._group_of_layer, default=0) + 1)]
        for table, new in zip(tables, block_ids, strict=False):
            table.extend(new)

    def expire(self, transfer_id: TransferId, group: int, num_blocks: int) -> None:
        """The engine freed the first `num_blocks` blocks of a sliding-window group."""
        if tables := self._tables.get(transfer_id):
            gone = min(num_blocks, len(tables[group]))
            tables[group][:gone] = [GONE] * gone

    def drop(self, transfer_id: TransferId) -> None:
        """Forget a transfer; unknown ones are ignored."""
        self._tables.pop(transfer_id, None)

    def of(self, transfer_id: TransferId, layers: Sequence[int]) -> tuple[BlockIds, ...] | None:
        """The block table of each layer, or None when the transfer has none."""
        tables = self._tables.get(transfer_id)
        return None if tables is None else tuple(tables[self._group_of_layer[layer]] for layer in layers)
