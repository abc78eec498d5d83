"""Rewrites the generated parts of the documents: text between `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pdkv_connector import config
from pdkv_connector.session.diagram import mermaid
from pdkv_connector.telemetry import metrics

ROOT = Path(__file__).resolve().parent.parent


def state_diagram() -> str:
    """The session's state machines as a fenced Mermaid block."""
    return f"```mermaid\n{mermaid()}\n```"


SECTIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "config": ("README.md", config.markdown_table),
    "metrics": ("README.md", metrics.markdown_table),
    "states": ("ARCHITECTURE.md", state_diagram),
}


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name}:begin -->\n).*?(?=<!-- {name}:end -->)", re.DOTALL)


def extract(text: str, name: str) -> str:
    """The text between the markers of `name`. Raises ValueError when they are missing."""
    found = _pattern(name).search(text)
    if found is None:
        raise ValueError(f"no <!-- {name}:begin --> ... <!-- {name}:end --> markers: add both, each on its own line")
    return found.group().strip()


def replace(text: str, name: str, body: str) -> str:
    """`text` with `body` between the markers of `name`."""
    extract(text, name)
    return _pattern(name).sub(lambda _: body + "\n", text)


def main() -> None:
    """Render every section in place."""
    for name, (file, render) in SECTIONS.items():
        path = ROOT / file
        path.write_text(replace(path.read_text(), name, render()))
        print(f"{file}: {name}")


if __name__ == "__main__":
    main()
