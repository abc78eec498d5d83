"""`pdkv keys` and the doctor's look at keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdkv_connector.cli import doctor_keys
from pdkv_connector.cli.main import app
from pdkv_connector.transport.control_keys import ACTIVE, create_key, load_keys


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["keys", *arguments])
    return done.exit_code, done.output


def fingerprints(folder: Path) -> list[str]:
    return [pair.fingerprint for pair in load_keys(str(folder))]


def test_a_key_is_made_shown_and_changed(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert run("create", str(folder))[0] == 0
    (old,) = fingerprints(folder)
    code, output = run("create", str(folder))
    _, new = fingerprints(folder)
    assert (code, f"active  {old}" in output, f"standby {new}" in output) == (0, True, True)
    assert f"pdkv keys swap {folder}" in output
    assert f"pdkv keys drop {folder}" in run("swap", str(folder))[1]
    assert run("drop", str(folder))[0] == 0
    assert run("show", str(folder)) == (0, f"active  {new}\n")


def test_no_command_prints_a_secret(tmp_path: Path) -> None:
    outputs = [run(command, str(tmp_path))[1] for command in ("create", "create", "show", "swap", "drop")]
    secrets = [pair.secret.decode() for pair in load_keys(str(tmp_path))]
    assert secrets
    assert not any(secret in output for secret in secrets for output in outputs)


@pytest.mark.parametrize(("command", "told"), [("show", "pdkv keys create"), ("swap", "two keys"), ("drop", "removed")])
def test_what_cannot_be_done_is_one_line_and_exit_1(tmp_path: Path, command: str, told: str) -> None:
    code, output = run(command, str(tmp_path))
    assert (code, told in output, len(output.strip().splitlines())) == (1, True, 1)


def found(monkeypatch: pytest.MonkeyPatch, **environ: str) -> tuple[str, str]:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (finding,) = doctor_keys.keys()
    return finding.state, f"{finding.detail}: {finding.fix}"


def test_the_doctor_tries_keys_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    create_key(tmp_path)
    state, detail = found(monkeypatch, PDKV_KEYS_DIR=str(tmp_path))
    assert (state, fingerprints(tmp_path)[0] in detail) == ("ok", True)


def test_the_doctor_names_a_bad_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.chmod(create_key(tmp_path), 0o644)
    state, detail = found(monkeypatch, PDKV_KEYS_DIR=str(tmp_path))
    assert (state, f"chmod 600 {tmp_path / ACTIVE}" in detail) == ("fault", True)


@pytest.mark.parametrize(("host", "state"), [("127.0.0.1", "ok"), ("192.0.2.7", "note")])
def test_the_doctor_misses_keys_where_others_reach_the_channel(
    monkeypatch: pytest.MonkeyPatch, host: str, state: str
) -> None:
    assert found(monkeypatch, PDKV_CONTROL_HOST=host)[0] == state
