"""Check that a transport passes bytes between two processes here, by letting it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from pdkv_connector.cli.checks import Finding, fault, note, ok
from pdkv_connector.cli.transport_probe import TOTAL_BYTES
from pdkv_connector.config import Config
from pdkv_connector.errors import ConfigError

LIMIT_S = 60.0


def transports() -> Iterator[Finding]:
    """Every transport that can cross a process border, with the backend and parameters an engine would use here."""
    try:
        config = Config.from_sources({}, os.environ)
    except ConfigError:
        config = Config()
    if importlib.util.find_spec("nixl") is None:
        yield note("nixl", "not installed, so no transport to another process (pip install 'pdkv-connector[nixl]')")
    else:
        yield probe("nixl", config.nixl_backend, config.nixl_params)


def probe(name: str, backend: str, params: dict[str, str], limit_s: float = LIMIT_S) -> Finding:
    """Move bytes from one new process to another over transport `name`; a fault quotes what went wrong."""
    label = f"{name}/{backend}"
    arguments = (name, backend, json.dumps(params))
    receiver, sender = _child("receive", *arguments), _child("send", *arguments)
    expired = threading.Event()
    limit = threading.Timer(limit_s, _kill, (expired, receiver, sender))
    limit.start()
    try:
        answer = _converse(receiver, sender)
    finally:
        limit.cancel()
        errors = [_ended(child) for child in (sender, receiver)]
    if answer is None:
        what = (
            f"no bytes passed within {limit_s:g} s"
            if expired.is_set()
            else next((e for e in errors if e), "a probe ended")
        )
        return fault(label, what, "see its library's log (UCX_LOG_LEVEL=info) and UCX_TLS, UCX_NET_DEVICES")
    bytes_per_s, intact = answer
    if not intact:
        return fault(label, "bytes arrived changed", "do not use it on this machine; report it")
    return ok(label, f"{TOTAL_BYTES / 2**20:.0f} MiB between two processes, {bytes_per_s / 1e9:.2f} GB/s")


def _child(role: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "pdkv_connector.cli.transport_probe", role, *arguments]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _kill(expired: threading.Event, *children: subprocess.Popen[str]) -> None:
    expired.set()
    for child in children:
        child.kill()


def _converse(receiver: subprocess.Popen[str], sender: subprocess.Popen[str]) -> tuple[float, bool] | None:
    """Bytes per second and whether all bytes were right; None when one of the two ended early."""
    try:
        offer = _line(receiver)
        assert sender.stdin is not None
        sender.stdin.write(json.dumps(offer) + "\n")
        sender.stdin.flush()
        return float(_line(sender)["bytes_per_s"]), bool(_line(receiver)["intact"])
    except (EOFError, BrokenPipeError):
        return None


def _line(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise EOFError
    fields: dict[str, Any] = json.loads(line)
    return fields


def _ended(child: subprocess.Popen[str]) -> str:
    """End `child` and return the last line of its standard error, empty when it ended well."""
    try:
        _, errors = child.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        child.kill()
        _, errors = child.communicate()
    lines = errors.strip().splitlines()
    return lines[-1] if lines and child.returncode not in (0, -9) else ""
