"""A network that is away when a peer is to be connected: writes fail meanwhile, and succeed once it is back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from pdkv_connector.errors import TransportError
from pdkv_connector.transport.nixl import NixlTransport
from pdkv_connector.transport.nixl_agent import NixlAgent
from tests.unit.transport.landing import SLOT_BYTES
from tests.unit.transport.source import Source
from tests.unit.transport.targets import ProcessTarget

pytest.importorskip("nixl")


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    """Over TCP, as between machines."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    opened = Source("nixl", NixlTransport(write_limit_s=1.0))
    yield opened
    opened.transport.close()


@pytest.fixture
def target(source: Source, tmp_path: Path) -> Iterator[ProcessTarget]:
    opened = ProcessTarget(tmp_path)
    yield opened
    opened.die()


@contextmanager
def no_network() -> Iterator[None]:
    """What NIXL says when it loads a peer that has no route: tests/faults/test_network.py takes the route away."""
    with mock.patch.object(NixlAgent, "add_remote", side_effect=TransportError("no route")):
        yield


def assert_fails(source: Source, target: ProcessTarget) -> None:
    lost = source.write(target, "lost", 0, SLOT_BYTES)
    source.pump(lambda: lost in source.failed)


def assert_lands(source: Source, target: ProcessTarget, label: str = "kept") -> None:
    kept = source.write(target, label, 0, SLOT_BYTES)
    source.pump(lambda: kept in source.done and (label, source.crc(0, SLOT_BYTES)) in target.seen)


def test_at_the_first_contact(source: Source, target: ProcessTarget) -> None:
    with no_network():
        with pytest.raises(TransportError, match="no route"):
            source.transport.connect("peer", target.metadata)
        assert_fails(source, target)
    assert_lands(source, target)


def test_when_a_stuck_writer_is_replaced(source: Source, target: ProcessTarget) -> None:
    source.transport.connect("peer", target.metadata)
    assert_lands(source, target, "before")
    target.pause()
    assert_fails(source, target)
    with no_network():
        for _ in range(3):
            assert_fails(source, target)
    target.resume()
    assert_lands(source, target)
