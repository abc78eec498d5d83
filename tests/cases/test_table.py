"""The table of cases in README.md: every case is there, and every test it names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("README.md").read_text()
CASES = (
    "C01", "C02", "C03", "C05", "C06", "C08", "C11", "C13", "C15", "C18", "C19", "C20", "C21", "C23", "C25", "C26",
    "C27", "C28", "C29", "C30",
)  # fmt: skip
STATES = ("proven", "part", "open", "does not apply")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows(text: str) -> dict[str, list[str]]:
    """Cells by case."""
    lines = (line.strip(" |").split(" | ") for line in text.splitlines() if re.match(r"\| C\d\d ", line))
    return {cells[0]: cells[1:] for cells in lines}


def functions_in(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def missing(text: str) -> list[str]:
    """Tests that a text names and that are not there."""
    return [
        f"{file}::{name}"
        for file, name in TEST.findall(text)
        if not (ROOT / file).is_file() or name not in functions_in(ROOT / file)
    ]


def named_by_case() -> Iterator[tuple[str, str]]:
    """(file::test, case) of every test in the tree whose name says which case it is."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in functions_in(path):
            for case in re.findall(r"c\d\d(?=_)", name) if name.startswith("test_case_") else ():
                yield f"{path.relative_to(ROOT)}::{name}", case.upper()


def test_every_case_has_a_row_that_says_where_it_stands() -> None:
    table = rows(TABLE)
    assert tuple(table) == CASES
    for case, (source, _, proof, control, state) in table.items():
        assert source
        assert state.startswith(STATES), f"{case}: {state}"
        if not state.startswith(("open", "does not apply")):
            assert TEST.search(proof), f"{case} is said to be {state} by no test"
            assert TEST.search(control), f"{case} has no control"


def test_every_test_that_the_table_names_exists() -> None:
    assert missing(TABLE) == []


def test_every_test_named_after_a_case_is_in_its_row() -> None:
    table = rows(TABLE)
    lost = [f"{test} of {case}" for test, case in named_by_case() if f"`{test}`" not in " ".join(table[case])]
    assert lost == []


@pytest.mark.parametrize(
    "name", ["tests/cases/test_table.py::test_nobody_wrote", "tests/cases/test_nothing.py::test_missing"]
)
def test_a_test_that_does_not_exist_is_seen(name: str) -> None:
    assert missing(f"| C01 | `{name}` |") == [name]
