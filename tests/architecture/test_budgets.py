"""Sizes of files, functions and classes. Function lengths leave the docstring out: explaining is not a cost."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator

import pytest

from tests.architecture.source import PACKAGES, TREES, Source, is_docstring, sources

FILE_CAP, FILE_MEDIAN = 400, 150
FUNCTION_CAP, FUNCTION_MEDIAN = 60, 10
CLASS_CAP, METHOD_CAP = 250, 15
FACADES = {"pdkv_connector.adapters.vllm.connector.PDKVConnector"}
"""Classes whose methods are counted out by the engine's interface: one line each, the work is done elsewhere."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: Source) -> Iterator[tuple[Function, int]]:
    """Every function with a body, and its length in lines from `def` to its end, without the docstring."""
    for node in ast.walk(source.tree):
        if isinstance(node, Function):
            doc = node.body[0] if is_docstring(node.body[0]) else None
            doc_lines = (doc.end_lineno or 0) - doc.lineno + 1 if doc else 0
            if len(node.body) > (doc is not None):
                yield node, (node.end_lineno or 0) - node.lineno + 1 - doc_lines


def cap_faults(source: Source) -> list[str]:
    faults = [f"{source.module} has {source.num_lines} lines, cap {FILE_CAP}"] if source.num_lines > FILE_CAP else []
    faults += [
        f"{source.module}:{node.lineno} {node.name} has {length} lines, cap {FUNCTION_CAP}"
        for node, length in functions(source)
        if length > FUNCTION_CAP
    ]
    classes = [node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
    return faults + [fault for node in classes for fault in _class(source, node)]


def _class(source: Source, node: ast.ClassDef) -> list[str]:
    where = f"{source.module}:{node.lineno} class {node.name}"
    length = (node.end_lineno or 0) - node.lineno + 1
    methods = sum(isinstance(child, Function) for child in node.body)
    faults = [f"{where} has {length} lines, cap {CLASS_CAP}"] if length > CLASS_CAP else []
    if methods > METHOD_CAP and f"{source.module}.{node.name}" not in FACADES:
        faults.append(f"{where} has {methods} methods, cap {METHOD_CAP}")
    return faults


def median_faults(files: list[Source]) -> list[str]:
    file_median = statistics.median(source.num_lines for source in files)
    function_median = statistics.median(length for source in files for _, length in functions(source))
    faults = [f"median file has {file_median} lines, limit {FILE_MEDIAN}"] if file_median > FILE_MEDIAN else []
    if function_median > FUNCTION_MEDIAN:
        faults.append(f"median function has {function_median} lines, limit {FUNCTION_MEDIAN}")
    return faults


def test_nothing_exceeds_its_cap() -> None:
    faults = [fault for source in sources(*TREES) for fault in cap_faults(source)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("trees", [PACKAGES, ("tests",), ("benchmarks", "tools")])
def test_medians(trees: tuple[str, ...]) -> None:
    assert median_faults([source for source in sources(*trees) if source.has_code]) == []


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n" * (FILE_CAP + 1),
        "def f():\n" + "    x = 1\n" * FUNCTION_CAP,
        "class C:\n    async def f(self):\n" + "        x = 1\n" * FUNCTION_CAP,
        "class C:\n" + "    x = 1\n" * CLASS_CAP,
        "class C:\n" + "".join(f"    def f{i}(self): ...\n" for i in range(METHOD_CAP + 1)),
    ],
)
def test_an_excess_is_seen(text: str) -> None:
    assert cap_faults(Source.parse("pdkv_connector.x", text))


def test_the_largest_allowed_is_not_reported() -> None:
    text = "def f():\n    '''Doc.\n\n    More.\n    '''\n" + "    x = 1\n" * (FUNCTION_CAP - 1)
    assert cap_faults(Source.parse("pdkv_connector.x", text)) == []


def test_a_high_median_is_seen() -> None:
    long_function = Source.parse("pdkv_connector.x", "def f():\n" + "    x = 1\n" * FUNCTION_MEDIAN)
    long_file = Source.parse("pdkv_connector.y", "def f(): return 1\n" + "x = 1\n" * FILE_MEDIAN)
    assert len(median_faults([long_function])) == 1
    assert len(median_faults([long_file])) == 1
