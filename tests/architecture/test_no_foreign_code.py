"""Nothing that comes from outside can become code: no pickle and its like, no evaluation of text."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.source import PACKAGES, Source, imports, sources

MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "yaml",
    "code",
    "jsonpickle",
}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {"send_pyobj", "recv_pyobj", "read_pickle", "to_pickle", "literal_eval", "system", "popen"}
ARGUMENTS = {"allow_pickle", "shell"}
"""Harmless only as a literal False."""


def faults_in(source: Source) -> list[str]:
    found = [f"{source.module}:{line} imports {name}" for line, name in imports(source) if MODULES & {*name.split(".")}]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            found += [f"{source.module}:{node.lineno} {fault}" for fault in _call_faults(node)]
    return found


def _call_faults(call: ast.Call) -> list[str]:
    faults = []
    if isinstance(call.func, ast.Name) and call.func.id in CALLS:
        faults.append(f"calls {call.func.id}()")
    if isinstance(call.func, ast.Attribute):
        owner = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
        if call.func.attr in METHODS or (owner, call.func.attr) in {("torch", "load"), ("builtins", "eval")}:
            faults.append(f"calls {owner}.{call.func.attr}()")
    off = [
        keyword for keyword in call.keywords if isinstance(keyword.value, ast.Constant) and keyword.value.value is False
    ]
    return faults + [f"sets {word.arg}" for word in call.keywords if word.arg in ARGUMENTS and word not in off]


def test_the_package_runs_no_foreign_code() -> None:
    checked = sources(*PACKAGES)
    faults = [fault for source in checked for fault in faults_in(source)]
    assert not faults, "\n".join(faults)
    assert any(source.module == "pdkv_connector.transport.control" for source in checked)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import cloudpickle as c",
        "from multiprocessing.reduction import pickle",
        "eval('1')",
        "socket.recv_pyobj()",
        "np.load(file, allow_pickle=True)",
        "np.load(file, allow_pickle=chosen)",
        "torch.load(file)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_a_way_in_is_seen(text: str) -> None:
    assert faults_in(Source.parse("pdkv_connector.x", text))


@pytest.mark.parametrize(
    "text", ["np.load(file, allow_pickle=False)", "re.compile('x')", "model.eval()", "import json"]
)
def test_what_is_harmless_is_not_reported(text: str) -> None:
    assert faults_in(Source.parse("pdkv_connector.x", text)) == []
