"""The pure rooms read no clock, do no I/O, draw no random numbers and know no array library."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.architecture.source import Source, imports, sources

PURE = ("pdkv_connector/layout", "pdkv_connector/session", "pdkv_connector/policy")
IMPURE_MODULES = {
    "asyncio", "concurrent", "ctypes", "datetime", "io", "logging", "multiprocessing", "numba", "os", "pathlib",
    "random", "secrets", "select", "shutil", "socket", "subprocess", "sys", "tempfile", "threading", "time", "torch",
    "uuid", "vllm", "sglang", "zmq",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}
HEAVY = ("torch", "vllm", "sglang", "numba", "triton", "nixl")


def impurities(source: Source) -> list[str]:
    faults = [
        f"{source.module}:{line} imports {name}"
        for line, name in imports(source)
        if name.partition(".")[0] in IMPURE_MODULES
    ]
    return faults + [
        f"{source.module}:{node.lineno} calls {node.func.id}()"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
    ]


def heavy_modules_after(statement: str) -> list[str]:
    """Which of HEAVY a fresh interpreter holds after `statement`."""
    program = f"import sys\n{statement}\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_pure_rooms_are_pure() -> None:
    faults = [fault for source in sources(*PURE) for fault in impurities(source)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "from time import monotonic",
        "def f():\n    import torch",
        "import os.path",
        "def f():\n    return open('x')",
        "print('x')",
    ],
)
def test_an_impurity_is_seen(text: str) -> None:
    assert impurities(Source.parse("pdkv_connector.session.producer", text))


def test_clean_code_is_not_reported() -> None:
    text = "import enum\nfrom collections import deque\ndef timing(now: float) -> float:\n    return now + 1"
    assert impurities(Source.parse("pdkv_connector.session.producer", text)) == []


@pytest.mark.parametrize(
    "module",
    ["pdkv_connector", "pdkv_connector.config", "pdkv_connector.session.messages", "pdkv_connector.layout.region"],
)
def test_import_is_light(module: str) -> None:
    assert heavy_modules_after(f"import {module}") == []


def test_a_heavy_import_is_seen() -> None:
    assert heavy_modules_after("import numba") == ["numba"]
