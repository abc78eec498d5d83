"""Generated parts of the documents equal what the code generates; packaging promises hold."""

from __future__ import annotations

import tomllib

import pytest

from pdkv_connector.config import markdown_table
from tests.architecture.source import ROOT
from tools.render_docs import SECTIONS, extract, replace


@pytest.mark.parametrize("name", SECTIONS)
def test_documents_are_current(name: str) -> None:
    file, render = SECTIONS[name]
    assert extract((ROOT / file).read_text(), name) == render(), f"{file} is stale: run `make docs`"


@pytest.mark.parametrize("name", SECTIONS)
def test_a_stale_document_is_seen(name: str) -> None:
    file, render = SECTIONS[name]
    stale = replace((ROOT / file).read_text(), name, render().replace("e", "x", 1))
    assert extract(stale, name) != render()


def test_missing_markers_are_an_error() -> None:
    with pytest.raises(ValueError, match="config:begin"):
        extract(markdown_table(), "config")


def test_kernels_folder_is_no_package() -> None:
    """A top-level package `kernels` would shadow the distribution of that name, which engines import."""
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_core_dependencies_are_light() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not any(line.startswith(("torch", "vllm", "sglang", "triton", "nixl")) for line in project["dependencies"])
