"""Static instruction counts of the Triton kernels: compiled for sm_90 by the triton wheel's tools, without a GPU."""

from __future__ import annotations

import importlib
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CAPABILITY = 90
THREADS_PER_WARP = 32
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")
PADDING = {"NOP"}


@dataclass(frozen=True)
class Launch:
    """One kernel as a codec launches it: `pdkv_kernels.MODULE.FUNCTION` with these arguments.

    types: Triton's name of each argument's type, `constexpr` where `constants` has its value, in the kernel's order.
    aligned: arguments that are multiples of 16. num_elements: KV elements that one program handles.
    """

    module: str
    function: str
    types: dict[str, str]
    constants: dict[str, Any]
    aligned: tuple[str, ...]
    num_elements: int
    num_warps: int = 4
    label: str = field(default="")


@dataclass(frozen=True)
class Count:
    """Machine instructions of a compiled kernel, each counted once however often a loop runs it."""

    launch: Launch
    opcodes: Counter[str]

    @property
    def per_element(self) -> float:
        """Instructions of all threads of a program over the elements it handles."""
        num_threads = THREADS_PER_WARP * self.launch.num_warps
        return self.opcodes.total() * num_threads / self.launch.num_elements


def paged(module: str) -> Launch:
    """Gather or scatter of bf16 in blocks of 16 tokens x 128 dims, HND."""
    constants = {
        "BLOCK_SIZE": 16, "HEAD_DIM": 128, "TOKEN_FACTOR": 1, "TOKEN_OUTER": 256, "TOKEN_INNER": 0,
        "DIM_FACTOR": 1, "DIM_OUTER": 1, "DIM_INNER": 0, "TILE_TOKENS": 32, "TILE_DIMS": 128,
    }  # fmt: skip
    types = {
        "memory": "*i16", "slab": "*i16", "block_ids": "*i64", "first_token": "i32", "num_tokens": "i32",
        "origin": "i64", "block_stride": "i64", "head_stride": "i64", **dict.fromkeys(constants, "constexpr"),
    }  # fmt: skip
    aligned = ("memory", "slab", "block_ids", "origin", "block_stride", "head_stride")
    return Launch(module, f"{module}_kernel", types, constants, aligned, 32 * 128, label=f"raw: {module}")


LAUNCHES = (paged("gather"), paged("scatter"))


def count(launch: Launch) -> Count:
    """Compile for sm_90 and count. The interpreter (TRITON_INTERPRET) must be off."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(f"pdkv_kernels.{launch.module}"), launch.function)
    names = list(launch.types)
    attrs = {(names.index(name),): [["tt.divisibility", 16]] for name in launch.aligned}
    source = ASTSource(kernel, launch.types, launch.constants, attrs)
    target = GPUTarget("cuda", CAPABILITY, THREADS_PER_WARP)
    compiled = triton.compile(source, target=target, options={"num_warps": launch.num_warps})
    return Count(launch, opcodes(disassembled(compiled.asm["cubin"])))


def disassembled(cubin: bytes) -> str:
    """SASS of a cubin, by the nvdisasm that comes with triton."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__path__[0]) / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def opcodes(sass: str) -> Counter[str]:
    """Instructions by opcode, padding left out."""
    found = (INSTRUCTION.match(line) for line in sass.splitlines())
    return Counter(match[1] for match in found if match and match[1] not in PADDING)


def table(counts: list[Count]) -> str:
    """Instructions per element by kernel."""
    lines = ["| Kernel | SASS instructions | warps | elements a program | instructions per element (static) |"]
    lines += ["| --- | ---: | ---: | ---: | ---: |"]
    for each in counts:
        launch = each.launch
        cells = (launch.label, each.opcodes.total(), launch.num_warps, launch.num_elements, f"{each.per_element:.1f}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
