"""Fixtures of the fault tests, and the table of what came of each fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.rig.child_process import Spares
from tests.engines.rig.dialect import DIALECTS
from tests.engines.rig.shelf import EngineShelf
from tests.engines.rig.testbed import Testbed
from tests.faults.rig.ground import Ground
from tests.faults.rig.record import RECORD
from tests.faults.rig.served import Served


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    if lines := RECORD.lines():
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="package")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Room for one pair: a second one's engines take the place of the first's."""
    folder = tmp_path_factory.mktemp("faults")
    shelf = EngineShelf(folder, capacity=2, spares=Spares())
    try:
        yield Testbed(folder, shelf, DIALECTS["pdkv"])
    finally:
        shelf.stop_all()


@pytest.fixture(scope="package")
def common_ground(testbed: Testbed) -> Ground:
    return Ground(testbed)


@pytest.fixture(scope="package")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("servers"))
    yield served
    served.stop()


@pytest.fixture
def no_servers(deployment: Served) -> None:
    """One pair of engines at a time."""
    deployment.stop()


@pytest.fixture
def no_engines(testbed: Testbed) -> None:
    """One pair of servers at a time."""
    testbed.shelf.stop_all()


@pytest.fixture
def ground(common_ground: Ground, no_servers: None) -> Iterator[Ground]:
    """The pair of engines; what faults leave behind is cleared away by `Ground.pair`."""
    yield common_ground
    common_ground.clear()


@pytest.fixture
def served(deployment: Served, no_engines: None) -> Served:
    """The pair of servers behind the proxy."""
    if not deployment.running:
        deployment.start()
    return deployment
