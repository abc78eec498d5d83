"""The two ends every contract test gets: a writer here, and targets made on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.transport.source import Source
from tests.unit.transport.targets import LocalTarget, ProcessTarget, Target

OpenTarget = Callable[[], Target]


@pytest.fixture(params=["loopback", "nixl"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "nixl":
        pytest.importorskip("nixl")
    return str(request.param)


@pytest.fixture
def source(kind: str) -> Iterator[Source]:
    """The writing end, on the transport under test."""
    opened = Source(kind)
    yield opened
    opened.transport.close()


@pytest.fixture
def open_target(kind: str, tmp_path: Path) -> Iterator[OpenTarget]:
    """Opens targets of the transport under test; all of them are ended after the test."""
    opened: list[Target] = []

    def open_one() -> Target:
        opened.append(LocalTarget(tmp_path) if kind == "loopback" else ProcessTarget(tmp_path))
        return opened[-1]

    yield open_one
    for target in opened:
        target.die()
