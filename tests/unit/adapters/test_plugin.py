"""The entry point that vLLM calls in each of its processes."""

from __future__ import annotations

import subprocess
import sys

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


LOG = """
import logging
from pdkv_connector.adapters.vllm.plugin import register
register()
from vllm.config.logging import LoggingConfig
from vllm.logger import configure_logging
logging.getLogger("pdkv_connector.early").info("said before")
configure_logging(LoggingConfig())
logging.getLogger("pdkv_connector.late").info("said after")
"""


def test_our_log_goes_where_the_engines_goes() -> None:
    """At vLLM's level, INFO by default; until vLLM configures its log Python shows warnings only."""
    done = subprocess.run([sys.executable, "-c", LOG], capture_output=True, text=True, check=True, timeout=120)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "said" in line]
    assert len(lines) == 1
    assert "INFO" in lines[0]
    assert "said after" in lines[0]
