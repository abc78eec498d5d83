"""Kernels run in Triton's interpreter, or on a GPU with `PDKV_TEST_DEVICE=cuda`."""

from __future__ import annotations

import importlib.util
import os

import pytest

DEVICE = os.environ.get("PDKV_TEST_DEVICE", "cpu")

# Triton decides when a kernel is defined, so its own library comes first, uninterpreted. The setting must not outlive
# the kernels' import: engines started by other tests would inherit it.
if DEVICE == "cpu" and importlib.util.find_spec("triton"):
    importlib.import_module("triton.language")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRITON_INTERPRET", "1")
        for operation in (
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
        ):
            importlib.import_module(f"pdkv_kernels.{operation}")
