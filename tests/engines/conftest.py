"""Fixtures for tests on real engines. `PDKV_TEST_CONNECTOR=nixl` runs what applies on vLLM's own connector instead."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.engines.rig.dialect import DIALECTS
from tests.engines.rig.pair import EnginePair
from tests.engines.rig.shelf import EngineShelf
from tests.engines.rig.testbed import Testbed


@pytest.fixture(scope="package")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Not of the session: the next folder's tests need the memory for engines of their own."""
    folder = tmp_path_factory.mktemp("engines")
    shelf = EngineShelf(folder)
    try:
        yield Testbed(folder, shelf, DIALECTS[os.environ.get("PDKV_TEST_CONNECTOR", "pdkv")])
    finally:
        shelf.stop_all()


@pytest.fixture(scope="session", params=["smollm2", "gemma3"])
def model(request: pytest.FixtureRequest) -> str:
    """Session-scoped so that pytest runs all tests of one model before the next."""
    return str(request.param)


@pytest.fixture
def pair(testbed: Testbed, model: str) -> EnginePair:
    """Float32 engines: greedy tokens are a valid oracle there, in bfloat16 they are not."""
    return testbed.default_pair(model)


@pytest.fixture
def ours(testbed: Testbed) -> Testbed:
    """For tests of what only this project's connector promises."""
    if testbed.dialect.name != "pdkv":
        pytest.skip(f"{testbed.dialect.name} promises nothing of the kind")
    return testbed


@pytest.fixture
def smollm(ours: Testbed) -> EnginePair:
    """The float32 SmolLM2 pair, for tests whose subject does not depend on the model."""
    return ours.default_pair("smollm2")
