"""Ranks that are stopped after the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from tests.unit.runtime.rank import Rank
from tests.unit.runtime.roles import Decode, Prefill


class OpenRank(Protocol):
    """Builds a `Rank`."""

    def __call__(self, layout: str = "nhd", block_size: int = 16, **settings: Any) -> Rank: ...


@pytest.fixture
def open_rank() -> Iterator[OpenRank]:
    opened: list[Rank] = []

    def open_one(layout: str = "nhd", block_size: int = 16, **settings: Any) -> Rank:
        opened.append(Rank(layout, block_size, **settings))
        return opened[-1]

    yield open_one
    for rank in opened:
        rank.runtime.stop()


@pytest.fixture
def prefill(open_rank: OpenRank) -> Prefill:
    """A producer with blocks packed as on a CPU with matrix units."""
    return Prefill(open_rank("cpu_amx", 32))


@pytest.fixture
def decode(open_rank: OpenRank) -> Decode:
    """A consumer with token-major blocks of half the producer's size."""
    return Decode(open_rank("nhd", 16))
