"""The entry point that vLLM calls in each of its processes."""

from __future__ import annotations

import pytest
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from pdkv_connector.adapters.vllm.plugin import CONNECTOR, register


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A registry of our own, without our connector."""
    entries = {name: load for name, load in KVConnectorFactory._registry.items() if name != CONNECTOR}
    monkeypatch.setattr(KVConnectorFactory, "_registry", entries)
    return entries


def test_registering_twice_is_registering_once(registry: dict[str, object]) -> None:
    register()
    first = registry[CONNECTOR]
    register()
    assert registry[CONNECTOR] is first


def test_the_name_leads_to_the_class() -> None:
    from pdkv_connector.adapters.vllm.connector import PDKVConnector

    register()
    assert KVConnectorFactory.get_connector_class_by_name(CONNECTOR) is PDKVConnector


def test_a_fault_is_logged_and_does_not_stop_vllm(
    registry: dict[str, object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("changed its signature")

    monkeypatch.setattr(KVConnectorFactory, "register_connector", fail)
    register()
    assert CONNECTOR not in registry
    assert "PDKVConnector could not be registered" in caplog.text
