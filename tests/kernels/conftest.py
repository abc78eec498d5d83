"""Kernels run on a GPU where there is one, else in Triton's interpreter; `PDKV_TEST_DEVICE` (cpu, cuda) overrides."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.kernels.scenes import DEVICE

OPERATIONS = (
    "paged",
    "gather",
    "scatter",
    "segments",
    "planes",
    "table",
    "encode",
    "place",
    "pack",
    "decode",
    "checksum",
)
USERS = ("raw_triton", "cascade_plan", "cascade_triton")


def forget_compiled() -> None:
    """Tests of benchmarks may have imported the kernels before, to be compiled; what they hold stays as it is."""
    users = {f"pdkv_connector.codec.{user}" for user in USERS}
    for name in [name for name in sys.modules if name.partition(".")[0] == "pdkv_kernels" or name in users]:
        del sys.modules[name]


# Triton decides when a kernel is defined, so its own library comes first, uninterpreted. The setting must not outlive
# the kernels' import: engines started by other tests would inherit it.
if DEVICE == "cpu" and importlib.util.find_spec("triton"):
    importlib.import_module("triton.language")
    forget_compiled()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRITON_INTERPRET", "1")
        for operation in OPERATIONS:
            importlib.import_module(f"pdkv_kernels.{operation}")
