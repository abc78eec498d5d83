"""A peer that neither dies nor answers: the write ends in bounded time, and from then on its source is really free."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pdkv_connector.transport.nixl import NixlTransport
from tests.unit.transport.landing import SLOT_BYTES
from tests.unit.transport.source import Source
from tests.unit.transport.targets import ProcessTarget

NUM_WRITES = 4

pytest.importorskip("nixl")


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    """Over TCP, where the kernel cannot copy into the peer behind its back."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    opened = Source("nixl", NixlTransport(write_limit_s=3.0))
    yield opened
    opened.transport.close()


@pytest.fixture
def targets(source: Source, tmp_path: Path) -> Iterator[tuple[ProcessTarget, ProcessTarget]]:
    """Two connected targets, `frozen` and `healthy`."""
    opened = (ProcessTarget(tmp_path), ProcessTarget(tmp_path))
    for peer, target in zip(("frozen", "healthy"), opened, strict=True):
        source.transport.connect(peer, target.metadata)
        write_id = source.write(target, "first", 0, 4096, peer)
        source.pump(lambda write_id=write_id: write_id in source.done)  # type: ignore[misc]
    yield opened
    for target in opened:
        target.die()


def test_source_is_free_after_write_failed(source: Source, targets: tuple[ProcessTarget, ProcessTarget]) -> None:
    frozen, healthy = targets
    source.bytes[:] = 1
    frozen.pause()
    lost = [source.write(frozen, "lost", i * SLOT_BYTES, SLOT_BYTES, "frozen") for i in range(NUM_WRITES)]
    kept = source.write(healthy, "kept", 0, SLOT_BYTES, "healthy")
    source.pump(lambda: sorted(source.failed) == lost and kept in source.done)
    source.bytes[:] = 2
    frozen.resume()
    again = source.write(frozen, "again", NUM_WRITES * SLOT_BYTES, SLOT_BYTES, "frozen")
    source.pump(lambda: again in source.done and frozen.seen[-1][0] == "again")
    assert frozen.seen[-1][1] == source.crc(0, SLOT_BYTES)
    assert not (frozen.bytes[: NUM_WRITES * SLOT_BYTES] == 2).any(), "a failed write still read its reused source"


def test_disconnect_fails_writes_in_flight(source: Source, targets: tuple[ProcessTarget, ProcessTarget]) -> None:
    frozen, _ = targets
    frozen.pause()
    lost = source.write(frozen, "lost", 0, SLOT_BYTES, "frozen")
    source.transport.disconnect("frozen")
    source.pump(lambda: lost in source.failed)
    assert "disconnected" in source.failed[lost]


@pytest.mark.timeout(60)
def test_close_with_writes_in_flight_does_not_hang(
    source: Source, targets: tuple[ProcessTarget, ProcessTarget]
) -> None:
    frozen, _ = targets
    frozen.pause()
    source.write(frozen, "lost", 0, SLOT_BYTES, "frozen")
    source.transport.close()
