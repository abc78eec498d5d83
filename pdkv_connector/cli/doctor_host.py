"""Checks of this machine: settings in the environment, addresses, devices."""

from __future__ import annotations

import glob
import os
import socket
import subprocess
from collections.abc import Iterator

from pdkv_connector.cli.checks import Finding, fault, note, ok
from pdkv_connector.config import Config
from pdkv_connector.errors import ConfigError


def configuration() -> Iterator[Finding]:
    """The PDKV_* variables, as an engine started here would read them."""
    names = sorted(name for name in os.environ if name.startswith("PDKV_"))
    try:
        Config.from_sources({}, os.environ)
    except ConfigError as error:
        yield fault("PDKV_*", str(error), "change or unset that variable")
        return
    yield ok("PDKV_*", ", ".join(names) if names else "none set: defaults")


def ports() -> Iterator[Finding]:
    """Whether the control channel's address can be bound, and which address others would see."""
    try:
        config = Config.from_sources({}, os.environ)
    except ConfigError:
        config = Config()
    yield _bindable(config.control_host, config.control_port)
    name = socket.gethostname()
    try:
        yield ok("host name", f"{name} is {socket.gethostbyname(name)}")
    except OSError:
        yield note("host name", f"{name} does not resolve: give control_host as an address")


def devices() -> Iterator[Finding]:
    """GPUs, which no CPU engine needs."""
    if not glob.glob("/dev/nvidia[0-9]*"):
        yield note("GPU", "none: CPU engines only")
        return
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        yield from (ok("GPU", line) for line in done.stdout.strip().splitlines())
    except (OSError, subprocess.SubprocessError) as error:
        yield fault("GPU", f"there is one, but nvidia-smi fails ({error})", "mend the driver")


def _bindable(host: str, port: int) -> Finding:
    where = f"{host}:{port or 'any'}"
    try:
        with socket.create_server((host, port)):
            return ok("control port", f"{where} can be bound")
    except OSError as error:
        fix = "set PDKV_CONTROL_HOST to an address of this machine and PDKV_CONTROL_PORT to a free port or 0"
        return fault("control port", f"{where} cannot be bound ({error.strerror})", fix)
