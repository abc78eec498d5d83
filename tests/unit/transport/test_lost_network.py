"""A network that is away when a peer is to be connected: writes fail meanwhile, and succeed once it is back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
    monkeypatch.setenv("UCX_LOG_LEVEL", "fatal")  # it would write among what the target reports
    opened = Source("nixl", NixlTransport(write_limit_s=1.0))
    yield opened
    opened.transport.close()


@pytest.fixture
def target(source: Source, tmp_path: Path) -> Iterator[ProcessTarget]:
    opened = ProcessTarget(tmp_path)
    yield opened
    opened.die()


class Network:
    """Up or down as NIXL sees it: an agent made, or first asked, while it is down never sees the peer.

    tests/faults/test_network.py takes a real one down.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up = True
        self._blind: set[NixlAgent] = set()
        self._add_remote = NixlAgent.add_remote
        monkeypatch.setattr(NixlAgent, "add_remote", lambda agent, metadata: self._add(agent, metadata))

    def _add(self, agent: NixlAgent, metadata: bytes) -> str:
        if not self.up:
            self._blind.add(agent)
        if agent in self._blind:
            raise TransportError("no route")
        return self._add_remote(agent, metadata)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


def assert_fails(source: Source, target: ProcessTarget) -> None:
    lost = source.write(target, "lost", 0, SLOT_BYTES)
    source.pump(lambda: lost in source.failed)


def assert_lands(source: Source, target: ProcessTarget, label: str) -> None:
    """Written again until it has landed, as a slab is."""
    writes = [source.write(target, label, 0, SLOT_BYTES)]

    def landed() -> bool:
        if writes[-1] in source.failed:
            writes.append(source.write(target, label, 0, SLOT_BYTES))
        return (label, source.crc(0, SLOT_BYTES)) in target.seen

    source.pump(landed)


def test_at_the_first_contact(source: Source, target: ProcessTarget, network: Network) -> None:
    network.up = False
    with pytest.raises(TransportError, match="no route"):
        source.transport.connect("peer", target.metadata)
    assert_fails(source, target)
    network.up = True
    assert_lands(source, target, "after")


def test_when_a_stuck_writer_is_replaced(source: Source, target: ProcessTarget, network: Network) -> None:
    source.transport.connect("peer", target.metadata)
    assert_lands(source, target, "before")
    target.pause()
    network.up = False
    for _ in range(3):
        assert_fails(source, target)
    target.resume()
    network.up = True
    assert_lands(source, target, "after")
