"""Every address that interpreted kernels read or write is checked against the tensors they were meant to touch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest


class Fence:
    """Stands in for the part of Triton's interpreter that touches memory. Ranges are `(first byte, past the last)`."""

    def __init__(self, machine: Any, readable: list[tuple[int, int]], writable: list[tuple[int, int]]) -> None:
        self._machine = machine
        self._readable = np.array(sorted({*readable, *writable}), np.uint64)
        self._writable = np.array(sorted(writable), np.uint64)
        self.trespasses: list[str] = []

    def load(self, addresses: Any, mask: Any, other: Any, kind: Any) -> Any:
        mask = self._inside("read", self._readable, addresses, mask, np.dtype(kind).itemsize)
        return self._machine.load(addresses, mask, other, kind)

    def store(self, addresses: Any, values: Any, mask: Any) -> Any:
        mask = self._inside("write", self._writable, addresses, mask, values.dtype.itemsize)
        return self._machine.store(addresses, values, mask)

    def atomic_rmw(self, operation: Any, addresses: Any, values: Any, mask: Any, order: Any) -> Any:
        mask = self._inside("write", self._writable, addresses, mask, values.dtype.itemsize)
        return self._machine.atomic_rmw(operation, addresses, values, mask, order)

    def _inside(self, what: str, ranges: Any, addresses: Any, mask: Any, num_bytes: int) -> Any:
        """The mask without trespassers, which are noted: the test must live to tell."""
        first = addresses.astype(np.uint64)
        at = np.searchsorted(ranges[:, 0], first, side="right")
        held = at > 0
        held &= first + np.uint64(num_bytes) <= ranges[np.maximum(at, 1) - 1, 1]
        if (count := int((mask & ~held).sum())) > 0:
            self.trespasses.append(f"{what} of {num_bytes} bytes at {count} addresses")
        return mask & held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)


def extent_of(tensor: Any) -> tuple[int, int]:
    """First byte and the one past the last of a contiguous tensor."""
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()


@contextmanager
def fenced(readable: list[Any], writable: list[Any]) -> Iterator[Fence]:
    """While this lasts, interpreted kernels may read and write these tensors only."""
    from triton.runtime import interpreter

    fence = Fence(interpreter._interpreter, [*map(extent_of, readable)], [*map(extent_of, writable)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_interpreter", fence)
        yield fence
