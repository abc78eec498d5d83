"""Imports point one way, and engines and array libraries stay in the rooms that own them."""

from __future__ import annotations

import pytest

from tests.architecture.source import PACKAGES, Source, imports, sources

BASE = {"types", "errors"}
SIDE = {"session", "codec", "transport", "policy"}
SHELL = BASE | {"layout", "config", "telemetry", "rare_log"} | SIDE

ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "types": {"errors"},
    "rare_log": set(),
    "config": BASE,
    "layout": BASE,
    "session": BASE | {"layout"},
    "telemetry": BASE | {"session", "rare_log"},
    "policy": BASE | {"layout"},
    "codec": BASE | {"layout", "kernels"},
    "transport": BASE | {"layout", "session.messages", "rare_log"},
    "runtime": SHELL,
    "adapters": SHELL | {"runtime"},
    "proxy": SHELL | {"runtime"},
    "cli": SHELL | {"runtime", "proxy"},
    "kernels": set(),
    "": set(),
}
"""What each room may import besides itself. The control channel carries session messages, so it knows their names."""

OWNERS: dict[str, set[str]] = {
    "vllm": {"adapters"},
    "sglang": {"adapters"},
    "torch": {"adapters", "codec", "cli", "runtime", "kernels", "transport"},
    "transformers": {"cli"},
    "triton": {"kernels"},
    "numba": {"codec"},
    "nixl": {"transport"},
    "zmq": {"transport"},
    "aiohttp": {"proxy", "cli"},
    "typer": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"cli"},
}
"""The rooms that may import a library; libraries not named here are free."""


def place(module: str) -> tuple[str, str]:
    """Room and path inside the package: `pdkv_connector.codec.raw.RawCodec` gives codec, codec.raw.RawCodec."""
    package, _, path = module.partition(".")
    return ("kernels", "kernels") if package == "pdkv_kernels" else (path.partition(".")[0], path)


def arrow_faults(source: Source) -> list[str]:
    room, _ = place(source.module)
    faults = []
    for line, name in imports(source):
        if name.partition(".")[0] not in ("pdkv_connector", "pdkv_kernels") or name.startswith("pdkv_connector.__"):
            continue
        target, path = place(name)
        if target != room and not any(path == ok or path.startswith(ok + ".") for ok in ARROWS[room]):
            faults.append(
                f"{source.module}:{line} imports {name}; {room or 'the package root'} may import {ARROWS[room]}"
            )
    return faults


def owner_faults(source: Source) -> list[str]:
    room, _ = place(source.module)
    return [
        f"{source.module}:{line} imports {name}; only {OWNERS[library]} may"
        for line, name in imports(source)
        if (library := name.partition(".")[0]) in OWNERS and room not in OWNERS[library]
    ]


def test_imports_point_one_way() -> None:
    faults = [fault for source in sources(*PACKAGES) for fault in arrow_faults(source)]
    assert not faults, "\n".join(faults)


def test_libraries_stay_with_their_owners() -> None:
    faults = [fault for source in sources(*PACKAGES) for fault in owner_faults(source)]
    assert not faults, "\n".join(faults)


def test_every_room_has_its_arrows() -> None:
    assert {place(source.module)[0] for source in sources(*PACKAGES)} <= ARROWS.keys()


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("pdkv_connector.layout.region", "from pdkv_connector.session import messages"),
        ("pdkv_connector.layout.region", "def f():\n    import pdkv_connector.codec.raw"),
        ("pdkv_connector.session.producer", "from pdkv_connector import runtime"),
        ("pdkv_connector.session.producer", "from ..codec.raw import RawCodec"),
        ("pdkv_connector.transport.control", "from pdkv_connector.session.producer import Producer"),
        ("pdkv_connector.runtime", "from pdkv_connector.adapters.vllm import plugin"),
        ("pdkv_connector.proxy.app", "from pdkv_connector.cli.main import app"),
        ("pdkv_connector.types", "from pdkv_connector.config import Config"),
        ("pdkv_kernels.gather", "from pdkv_connector.types import Span"),
        ("pdkv_connector", "from pdkv_connector.config import Config"),
    ],
)
def test_a_wrong_arrow_is_seen(module: str, text: str) -> None:
    assert arrow_faults(Source.parse(module, text))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("pdkv_connector.runtime", "from pdkv_connector.session.producer import Producer"),
        ("pdkv_connector.transport.control", "from pdkv_connector.session.messages import Hello"),
        ("pdkv_connector.codec.gpu", "from pdkv_kernels.gather import gather"),
        ("pdkv_connector.session.producer", "from .messages import Hello"),
    ],
)
def test_a_right_arrow_is_not_reported(module: str, text: str) -> None:
    assert arrow_faults(Source.parse(module, text)) == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("pdkv_connector.runtime", "from vllm.config import VllmConfig"),
        ("pdkv_connector.session.producer", "import torch"),
        ("pdkv_connector.codec.raw", "import zmq"),
    ],
)
def test_a_stray_library_is_seen(module: str, text: str) -> None:
    assert owner_faults(Source.parse(module, text))
