"""Engines and ranks that are stopped after the test. What is about vLLM's scheduler needs vLLM."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.unit.runtime.conftest import decode, open_rank, prefill

if TYPE_CHECKING:
    from tests.cases.engine import Engine
    from tests.cases.pair import Pair

__all__ = ["decode", "open_rank", "prefill"]

FREE_OF_VLLM = {"test_table.py"}

if importlib.util.find_spec("vllm") is None:
    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in FREE_OF_VLLM]

NO_LEASE = {"lease_s": 3600}
"""Blocks that come back with this did so because somebody said so."""


class OpenPair(Protocol):
    """Builds a `Pair`; each dict sets what differs from the defaults on its side."""

    def __call__(self, prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None) -> Pair: ...


@pytest.fixture
def open_pair(tmp_path: Path) -> Iterator[OpenPair]:
    from tests.cases.engine import Engine
    from tests.cases.pair import Pair

    opened: list[Engine] = []

    def open_engine(role: str, settings: dict[str, Any] | None) -> Engine:
        opened.append(Engine(tmp_path, role, **{**NO_LEASE, **(settings or {})}))
        return opened[-1]

    def open_one(prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None) -> Pair:
        return Pair(open_engine("kv_producer", prefill), open_engine("kv_consumer", decode))

    yield open_one
    for engine in opened:
        engine.stop()


@pytest.fixture
def pair(open_pair: OpenPair) -> Pair:
    """Two engines with blocks of 16 tokens and ample pools."""
    return open_pair()
