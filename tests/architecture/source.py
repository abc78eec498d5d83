"""Python files as the architecture checks see them: a module name and a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pdkv_connector", "kernels/pdkv_kernels")
TREES = (*PACKAGES, "tests", "benchmarks", "tools")


@dataclass(frozen=True)
class Source:
    """One file: its dotted module name, its text and its tree."""

    module: str
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, module: str, text: str) -> Source:
        return cls(module, text, ast.parse(text))

    @property
    def num_lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def has_code(self) -> bool:
        """False for a package marker that holds a docstring at most."""
        return any(not is_docstring(node) for node in self.tree.body)


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "kernels" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(*trees: str) -> list[Source]:
    """Every file of `trees` (folders under the root), in order."""
    paths = sorted(path for tree in trees for path in (ROOT / tree).rglob("*.py"))
    return [Source.parse(_module(path), path.read_text()) for path in paths]


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported, wherever the import stands; `from a import b` gives `a.b`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(source.module, node)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".")[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])
