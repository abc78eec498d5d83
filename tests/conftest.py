"""Marks that decide by themselves whether a test can run here, and how property tests search."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: the first example may compile a kernel, and a busy machine is not a defect.
settings.register_profile("pdkv", deadline=None, print_blob=True)
settings.load_profile("pdkv")


def _has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests where there is no device; looks at /dev, because importing torch to ask costs seconds."""
    if _has_gpu():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
