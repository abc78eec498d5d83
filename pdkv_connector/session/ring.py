"""The receive ring: which slot is free, and which is lent to whom."""

from __future__ import annotations

from pdkv_connector.types import Credit


class ReceiveRing:
    """Lends slots as credits. A slot is lent to one leg at a time and comes back only by `settle`."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots - 1, -1, -1))
        self._next_serial = 0
        self._lent: set[Credit] = set()

    @property
    def num_free(self) -> int:
        """Slots nobody may write into."""
        return len(self._free)

    def lend(self) -> Credit | None:
        """A fresh credit, or None when every slot is lent."""
        if not self._free:
            return None
        return self._grant(self._free.pop())

    def renew(self, credit: Credit) -> Credit:
        """Lend the slot of `credit` on to its present holder, who may still be writing into it."""
        self._lent.remove(credit)
        return self._grant(credit.slot)

    def _grant(self, slot: int) -> Credit:
        credit = Credit(slot, self._next_serial)
        self._next_serial += 1
        self._lent.add(credit)
        return credit

    def settle(self, credit: Credit) -> None:
        """Take the slot back: its holder can write into it no more. Settling twice is a fault of the caller."""
        self._lent.remove(credit)
        self._free.append(credit.slot)
