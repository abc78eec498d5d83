"""Mutated streams never make the decoder read or write where it must not, nor fail without a name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.codec.fuzz_cascade import FAULTS

ROOT = Path(__file__).parents[3]
NUM_DECODES = 100_000


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own; freed and fresh heap memory is filled with a pattern."""
    settings = {"MALLOC_PERTURB_": "165", "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "kernels")))}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=os.environ | settings | environment, cwd=ROOT, capture_output=True, text=True, timeout=110
    )


def fuzz(decodes: int, encodes: int, seed: int, **environment: str) -> dict[str, dict[str, int]]:
    options = ("--decodes", str(decodes), "--encodes", str(encodes), "--seed", str(seed))
    done = run("-m", "tests.unit.codec.fuzz_cascade", *options, **environment)
    assert done.returncode == 0, f"seed {seed} ended with {done.returncode}: {done.stdout[-500:]} {done.stderr[-3000:]}"
    ends: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    print(f"seed {seed}: {ends}")
    return ends


@pytest.mark.slow
def test_mutated_streams_in_fenced_memory() -> None:
    ends = fuzz(NUM_DECODES, 1000, seed=1)
    assert sum(ends["decodes"].values()) == NUM_DECODES
    assert sum(ends["encodes"].values()) == 1000
    assert set(ends["decodes"]) == {*FAULTS, "wrong slab", "right slab"}, "a check that no stream came to is not tested"
    assert min(ends["decodes"].values()) > NUM_DECODES // 1000


@pytest.mark.slow
def test_mutated_streams_with_checked_indices(tmp_path: Path) -> None:
    """Every index of an array is checked by numba; compiled anew, as its cache does not tell the two apart."""
    ends = fuzz(3000, 0, seed=2, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))
    assert sum(ends["decodes"].values()) == 3000


@pytest.mark.parametrize("index", [-1, 4096])
def test_the_fence_ends_a_process_that_touches_it(index: int) -> None:
    """What the fuzz relies on: one byte before the memory, and one behind it."""
    touch = f"""
from tests.unit.codec.fence import Fence
from numba import njit
import sys
inside = Fence(4096).take(4096)
read = njit(lambda data, at: data[at])
read(inside, 0), read(inside, 4095)
print("alive", flush=True)
import ctypes
ctypes.c_ubyte.from_address(inside.ctypes.data + {index}).value
"""
    done = run("-c", touch)
    assert done.stdout == "alive\n"
    assert done.returncode == -signal.SIGSEGV
