"""`pdkv doctor`: faults are found, named with their fix, and end in exit code 1."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from pdkv_connector.cli import doctor, doctor_host, doctor_packages, doctor_transport
from pdkv_connector.cli.checks import Finding, fault, ok


def _states(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.state for finding in findings}


@pytest.mark.parametrize(
    ("version", "least", "below", "inside"),
    [
        ("0.32.0", "0.32", "0.33", True),
        ("0.32.1+cpu", "0.32", "0.33", True),
        ("0.33.0", "0.32", "0.33", False),
        ("0.31.9", "0.32", "0.33", False),
        ("1.10.0", "1.5.1", "1.6", False),
        ("0.32.0rc1", "0.32", "0.33", True),
        ("99", "26", "", True),
    ],
)
def test_version_ranges(version: str, least: str, below: str, inside: bool) -> None:
    assert doctor_packages.in_range(version, least, below) is inside


def test_ranges_are_those_the_package_declares() -> None:
    declared = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    for name, (least, below) in doctor_packages.RANGES.items():
        assert f'"{name}>={least}{f",<{below}" if below else ""}' in declared, name


def test_an_allow_list_without_us_is_a_fault_and_with_us_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    assert _states(list(doctor_packages.entry_points()))["VLLM_PLUGINS"] == "fault"
    monkeypatch.setenv("VLLM_PLUGINS", "other,pdkv")
    assert _states(list(doctor_packages.entry_points()))["VLLM_PLUGINS"] == "ok"


def test_a_mistyped_variable_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _states(list(doctor_host.configuration()))["PDKV_*"] == "ok"
    monkeypatch.setenv("PDKV_CONTROL_PRT", "1")
    [found] = doctor_host.configuration()
    assert (found.state, "PDKV_CONTROL_PRT" in found.detail) == ("fault", True)


def test_a_taken_control_port_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _states(list(doctor_host.ports()))["control port"] == "ok"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("PDKV_CONTROL_PORT", str(taken.getsockname()[1]))
        assert _states(list(doctor_host.ports()))["control port"] == "fault"


def test_a_transport_passes_bytes_between_two_processes() -> None:
    pytest.importorskip("nixl")
    found = doctor_transport.probe("nixl", "UCX", {})
    assert found.state == "ok", found
    assert "GB/s" in found.detail


def test_a_transport_that_cannot_cross_processes_is_a_fault_within_its_time() -> None:
    found = doctor_transport.probe("loopback", "", {}, limit_s=20.0)
    assert found.state == "fault"
    assert found.fix


def test_an_unknown_transport_is_a_fault_that_quotes_the_error() -> None:
    found = doctor_transport.probe("pigeon", "", {}, limit_s=20.0)
    assert (found.state, "unknown transport 'pigeon'" in found.detail) == ("fault", True)


def test_a_broken_check_is_a_finding_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Finding]:
        raise RuntimeError("no such device")

    checks = (("one", broken), ("two", lambda: [fault("two", "is off", "switch it on"), ok("three", "fine")]))
    monkeypatch.setattr(doctor, "CHECKS", checks)
    console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    assert doctor.run(console) is False
    text = console.export_text()
    assert "two: is off: switch it on" in text
    assert "no such device" in text
    monkeypatch.setattr(doctor, "CHECKS", checks[:0])
    assert doctor.run(console) is True


def test_the_command_exits_1_on_a_fault_and_names_it() -> None:
    command = [sys.executable, "-c", "from pdkv_connector.cli.main import app; app()", "doctor"]
    environment = {**os.environ, "VLLM_PLUGINS": "other", "UCX_TLS": os.environ.get("UCX_TLS", "tcp,sm,self")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "VLLM_PLUGINS: 'other' shuts the connector out: add pdkv to it, or unset it" in done.stdout
