"""The kernels compile for sm_90 without a GPU: ptxas comes with the triton wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]

# A process of its own: the interpreter, on for the other tests, would hide the compiler.
PROGRAM = """
import importlib, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
operation, dim_stride = sys.argv[1], int(sys.argv[2])
kernel = getattr(importlib.import_module(f"pdkv_kernels.{operation}"), f"{operation}_kernel")
pointers = {"memory": "*i16", "slab": "*i16", "block_ids": "*i64"}
scalars = {"first_token": "i32", "num_tokens": "i32", "origin": "i64", "block_stride": "i64", "head_stride": "i64"}
constants = {
    "BLOCK_SIZE": 16, "HEAD_DIM": 128, "TOKEN_FACTOR": 1, "TOKEN_OUTER": 2048, "TOKEN_INNER": 0,
    "DIM_FACTOR": 1, "DIM_OUTER": dim_stride, "DIM_INNER": 0, "TILE_TOKENS": 32, "TILE_DIMS": 128,
}
signature = pointers | scalars | {name: "constexpr" for name in constants}
names = list(signature)
aligned = [*pointers, "origin", "block_stride", "head_stride"]
attrs = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
source = ASTSource(kernel, signature, constants, attrs)
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(len(compiled.asm["cubin"]), *(line.strip() for line in compiled.asm["ptx"].splitlines() if "ld.global" in line))
"""


def compile_kernel(operation: str, dim_stride: int) -> list[str]:
    """Size of the machine code, then the global loads of the PTX."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "kernels"), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", PROGRAM, operation, str(dim_stride)]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=100, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.split(maxsplit=1)


@pytest.mark.parametrize("operation", ["gather", "scatter"])
def test_contiguous_dims_move_sixteen_bytes_at_a_time(operation: str) -> None:
    size, loads = compile_kernel(operation, 1)
    assert int(size) > 1000
    assert "v4.b32" in loads


def test_strided_dims_do_not() -> None:
    assert "v4.b32" not in compile_kernel("gather", 16)[1]


CASCADE_PROGRAM = """
import torch
from benchmarks import kernel_static
from benchmarks.shapes import Shape, hnd, make_memory, to_torch
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.codec.cascade_triton import TritonCascadeCodec
from pdkv_connector.types import Span

for dtype, width in (("bfloat16", 2), ("bfloat16", 4), ("float32", 2), ("float8_e4m3fn", 4)):
    host = make_memory((hnd(Shape(16, 16, 8, 128, dtype)),), 1)
    memory = KVMemory(host.regions, (to_torch(host.tensors[0], dtype),))
    codec, part = TritonCascadeCodec("any", width), SlabPart((0,), (range(16),), Span(0, 256), Span(0, 8))
    plan, out = codec.plan(memory, part), torch.zeros(2 * host.tensors[0].nbytes, dtype=torch.uint8)
    with kernel_static.compiled_instead() as found:
        codec.queue_encode(plan, out)
        codec.queue_decode(plan, out)
    for kernel in found:
        sass = kernel_static._tool("nvdisasm", "-c", cubin=kernel.asm["cubin"])
        spills = sum(kernel_static.opcodes(sass)[name] for name in ("LDL", "STL"))
        print(dtype, width, kernel.metadata.name, spills, "LDG.E.128" in sass, "STG.E.128" in sass)
"""


def test_cascade_kernels_work_in_registers() -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", CASCADE_PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=110, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    rows = [line.split() for line in run.stdout.splitlines()]
    assert {row[2] for row in rows} == {f"{name}_kernel" for name in ("table", "encode", "place", "pack", "decode")}
    for dtype, width, name, spills, wide_loads, wide_stores in rows:
        # ptxas puts one scalar of `split`'s encoder aside, to stay at 128 registers
        assert int(spills) <= 4, f"{name} of {dtype}, codes of {width} bits, spills registers"
        if dtype != "float8_e4m3fn":  # eight of its elements are eight bytes
            assert wide_loads == "True" or name != "encode_kernel"
            assert wide_stores == "True" or name != "decode_kernel"


CHECKSUM_PROGRAM = """
import triton
from pdkv_kernels.checksum import TILE_BYTES, checksum_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
signature = {"data": "*u8", "num_bytes": "i32", "out": "*i32", "TILE": "constexpr"}
attrs = {(0,): [["tt.divisibility", 16]]}
source = ASTSource(checksum_kernel, signature, {"TILE": TILE_BYTES}, attrs)
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(len(compiled.asm["cubin"]), *(line.strip() for line in compiled.asm["ptx"].splitlines() if "ld.global" in line))
"""


def test_the_checksum_reads_sixteen_bytes_at_a_time() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "kernels"), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", CHECKSUM_PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=100, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert "v4.b32" in run.stdout
