"""The GPU benchmark's arithmetic, and its measurement run on a CPU; its figures need a CUDA device."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import bench_kernels, kernel_static
from benchmarks.bench_kernels import MIB, Row
from benchmarks.machine import REPOSITORY
from pdkv_connector.codec.raw import RawCodec

torch = pytest.importorskip("torch")

ROW = Row("split", 4 * 10**12, 10**12, (8.0, 2.0, 4.0), (2.0,), (1.0,))


def test_every_size_is_met_exactly() -> None:
    for size in bench_kernels.SIZES_MIB:
        num_layers, num_tokens = bench_kernels.slab_geometry(size * MIB)
        assert num_layers * num_tokens * bench_kernels.TOKEN_BYTES == size * MIB


def test_rates_and_shares() -> None:
    assert [ROW.rate(direction) for direction in ("encode", "decode", "copy")] == [1.0, 2.0, 4.0]
    # 400 Gb/s carry 0.05 TB/s of payload: 0.2 TB/s of KV at a ratio of 4, a fifth of what all SMs encode.
    assert ROW.sm_share("encode", 400) == pytest.approx(0.2)
    assert ROW.sm_share("decode", 400) == pytest.approx(0.1)


def test_tables() -> None:
    small = Row("split", MIB, MIB, (1.0,), (1.0,), (1.0,))
    assert bench_kernels.rate_table([ROW]).splitlines()[-1] == "| split | 3.8147e+06 | 4.000 | 1.000 | 2.000 | 4.000 |"
    for rows in ([ROW, small], [small, ROW]):
        shares = bench_kernels.share_table(rows).splitlines()
        assert len(shares) == 2 + len(bench_kernels.LINKS_GBIT)
        assert shares[-1] == "| split | 400 | 20.0 % | 10.0 % |", "the largest slab counts"


def test_measurement_on_a_cpu() -> None:
    row = bench_kernels.measure("raw", MIB, 2, "cpu")
    assert (row.raw_bytes, row.encoded_bytes) == (MIB, MIB)
    assert len(row.encode_s) == len(row.decode_s) == len(row.copy_s) == 2


def test_a_lossy_codec_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lossy(RawCodec):
        def decode(self, memory: Any, part: Any, payload: Any) -> None:
            changed = payload.clone()
            changed[-1] ^= 1
            super().decode(memory, part, changed)

    monkeypatch.setattr(bench_kernels, "create_codec", lambda *_: Lossy())
    with pytest.raises(AssertionError, match="raw: layer 0 does not come back"):
        bench_kernels.measure("raw", MIB, 1, "cpu")


def test_channels_differ_in_scale() -> None:
    memory = bench_kernels.make_kv(1, 256, "cpu")
    values = memory.tensors[0].float().view(16, 8, 16, 256)
    scale = np.log2(values.std(dim=(0, 2)).numpy())
    assert scale.max() - scale.min() > 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so_and_records_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_kernels.main(["--out", str(tmp_path / "kernels.jsonl")]) == 0
    assert "no CUDA device" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/             @P1 BRA `(.L_x_0) ;
.L_x_0:
        /*0030*/                   EXIT ;
        /*0040*/                   NOP;
"""


def test_instructions_are_counted_by_opcode() -> None:
    opcodes = kernel_static.opcodes(SASS)
    assert opcodes == {"LDC": 1, "LDG": 1, "BRA": 1, "EXIT": 1}
    launch = dataclasses.replace(kernel_static.paged("gather"), num_elements=512, num_warps=4)
    assert kernel_static.Count(launch, opcodes).per_element == 1.0


def test_kernels_compile_and_have_instructions() -> None:
    """In a process of its own: other tests may have turned the interpreter on, which hides the compiler."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "benchmarks.bench_kernels", "--static"]
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env=env, timeout=110, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    rows = [line.split(" | ") for line in run.stdout.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(kernel_static.LAUNCHES)
    assert all(int(row[1]) > 50 for row in rows)
