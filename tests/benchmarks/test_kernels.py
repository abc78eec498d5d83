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

from benchmarks import bench_kernels, kernel_kv, kernel_report, kernel_static
from benchmarks.kernel_report import MIB, Row
from benchmarks.machine import REPOSITORY
from pdkv_connector.codec.raw import RawCodec
from pdkv_connector.codec.registry import create_codec

torch = pytest.importorskip("torch")

ROW = Row("split", 0, 4 * 10**12, 10**12, (8.0, 2.0, 4.0), (2.0,), (1.0,))
"""1 TB/s encoding, 2 decoding, 4 copying; 400 Gb/s carry 0.2 TB/s of its KV."""


def test_every_size_is_met_exactly() -> None:
    for size in bench_kernels.SIZES_MIB:
        num_layers, num_tokens = kernel_kv.slab_geometry(size * MIB)
        assert num_layers * num_tokens * kernel_kv.TOKEN_BYTES == size * MIB
        assert num_tokens % kernel_kv.BLOCK_SIZE == 0


def test_rates() -> None:
    assert [ROW.rate(direction) for direction in ("encode", "decode", "copy")] == [1.0, 2.0, 4.0]
    assert ROW.fills(400) == pytest.approx(0.2)
    table = kernel_report.rate_table([ROW, dataclasses.replace(ROW, num_programs=8)]).splitlines()
    assert table[2] == "| split | own choice | 3.8147e+06 | 4.000 | 1.000 | 2.000 | 4.000 |"
    assert table[3].startswith("| split | 8 |")


def bounded(num_programs: int, encode_s: float) -> Row:
    return dataclasses.replace(ROW, num_programs=num_programs, encode_s=(encode_s,), decode_s=(100.0,))


def test_the_fewest_programs_that_fill_a_link() -> None:
    rows = [bounded(64, 4.0), bounded(16, 20.1), bounded(32, 19.9)]
    assert kernel_report.least_programs(rows, "encode", 400) == 32
    assert kernel_report.least_programs(rows, "encode", 200) == 16
    assert kernel_report.least_programs([*rows, ROW], "decode", 400) is None, "the codec's own choice is no bound"
    table = kernel_report.share_table(rows, 128).splitlines()
    assert table[-1] == "| split | 400 | 32 (25 % of SMs) | not reached |"
    assert len(table) == 2 + len(kernel_report.LINKS_GBIT)


@pytest.mark.parametrize("name", ["raw", "split"])
def test_measurement_on_a_cpu(name: str) -> None:
    row = bench_kernels.measure(create_codec(name), MIB, 2, "cpu")
    assert row.raw_bytes == MIB
    assert (row.encoded_bytes < 0.75 * MIB) == (name == "split")
    assert len(row.encode_s) == len(row.decode_s) == len(row.copy_s) == 2


def test_a_lossy_codec_is_caught() -> None:
    class Lossy(RawCodec):
        def decode(self, memory: Any, part: Any, payload: Any) -> None:
            changed = payload.clone()
            changed[-1] ^= 1
            super().decode(memory, part, changed)

    with pytest.raises(AssertionError, match="raw: layer 0 does not come back"):
        bench_kernels.measure(Lossy(), MIB, 1, "cpu")


def test_channels_differ_in_scale() -> None:
    memory = kernel_kv.make_kv(1, 256, "cpu")
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
    assert kernel_static.Kernel("raw", "gather", 4, opcodes, 32).per_element == 4 * 4 * 32 / 4096
    assert kernel_static.Kernel("split", "place", 4, opcodes, 32).per_element is None


def test_kernels_compile_as_the_codecs_launch_them() -> None:
    """In a process of its own: other tests may have turned the interpreter on, which hides the compiler."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "benchmarks.bench_kernels", "--static"]
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env=env, timeout=110, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    rows = [line.strip("| ").split(" | ") for line in run.stdout.splitlines() if line.startswith("| ")][2:]
    names = {row[0] for row in rows}
    assert {"raw: gather", "raw: scatter", "split: encode", "split: decode", "pack4: encode", "pack4: decode"} <= names
    assert all(int(row[1]) > 50 and 0 < int(row[3]) < 256 for row in rows)
