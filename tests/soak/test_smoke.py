"""The soak itself, short: a good pair reaches every goal, and zeroed slabs are noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def soak(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Half a minute of short prompts without kills."""
    command = [
        sys.executable,
        "-m",
        "tests.soak",
        "--minutes",
        "0.5",
        "--longest",
        "300",
        "--no-kill",
        "--out",
        str(out),
    ]
    return subprocess.run([*command, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_a_good_pair_reaches_every_goal(tmp_path: Path) -> None:
    done = soak(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every goal was reached" in done.stdout


def test_zeroed_slabs_are_noticed(tmp_path: Path) -> None:
    done = soak(tmp_path, "--damage", "5", "--abort-share", "0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "MISSED wrong: request" in done.stdout
