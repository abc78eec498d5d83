"""Static instruction counts of the Triton kernels: compiled for sm_90 as the codecs launch them, without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernel_kv import make_kv, whole
from pdkv_connector.codec.raw_triton import TritonRawCodec

CAPABILITY, THREADS_PER_WARP = 90, 32
WIDTHS = {"split": 2, "pack4": 4}
ELEMENTS = {"gather": 4096, "scatter": 4096, "encode": 4096, "decode": 4096, "pack": 4096}
"""KV elements that one program handles in one turn; the other kernels do not go over elements."""
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")
PADDING = {"NOP"}


class NoDevice:
    """What Triton's launcher asks a driver for, answered for a device that is not there."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", CAPABILITY, THREADS_PER_WARP)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel: its machine instructions, each counted once however often a loop runs it."""

    codec: str
    name: str
    num_warps: int
    opcodes: Counter[str]
    registers: int

    @property
    def per_element(self) -> float | None:
        """Instructions of all threads of a program over the elements of one turn; None where none are handled."""
        if self.name not in ELEMENTS:
            return None
        return self.opcodes.total() * THREADS_PER_WARP * self.num_warps / ELEMENTS[self.name]


@contextmanager
def compiled_instead() -> Iterator[list[Any]]:
    """Launches inside compile for sm_90 and run nothing; yields what was compiled.

    The process cannot launch kernels afterwards: the driver it had, if there is one, is not put back.
    """
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    found: list[Any] = []
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, **options: Any) -> Any:
        found.append(launch(self, *args, **{**options, "warmup": True}))
        return found[-1]

    driver.set_active(NoDevice())
    JITFunction.run = compile_only
    try:
        yield found
    finally:
        JITFunction.run = launch


def kernels() -> Iterator[Kernel]:
    """Every kernel of every codec on bf16 KV in blocks of 16 tokens x 128 dims, HND. The interpreter must be off."""
    from pdkv_connector.codec.cascade_triton import TritonCascadeCodec

    memory = make_kv(1, 256, "cpu")
    part = whole(memory)
    out = torch.zeros(2 * memory.tensors[0].nbytes, dtype=torch.uint8)
    with compiled_instead() as found:
        TritonRawCodec().encode(memory, part, out)
        TritonRawCodec().decode(memory, part, out[: memory.tensors[0].nbytes])
        yield from _described("raw", found)
    for name, width in WIDTHS.items():
        with compiled_instead() as found:
            codec = TritonCascadeCodec(name, width)
            plan = codec.plan(memory, part)
            codec.queue_encode(plan, out)
            codec.queue_decode(plan, out)
            yield from _described(name, found)


def _described(codec: str, compiled: list[Any]) -> list[Kernel]:
    """Each of the compiled kernels once."""
    found = {
        kernel.metadata.name: Kernel(
            codec,
            kernel.metadata.name.removesuffix("_kernel"),
            kernel.metadata.num_warps,
            opcodes(_tool("nvdisasm", "-c", cubin=kernel.asm["cubin"])),
            registers(_tool("cuobjdump", "-res-usage", cubin=kernel.asm["cubin"])),
        )
        for kernel in compiled
    }
    return list(found.values())


def _tool(name: str, *options: str, cubin: bytes) -> str:
    """What a tool of the triton wheel prints about a cubin."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__path__[0]) / "bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, *options, file.name], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def opcodes(sass: str) -> Counter[str]:
    """Instructions by opcode, padding left out."""
    found = (INSTRUCTION.match(line) for line in sass.splitlines())
    return Counter(match[1] for match in found if match and match[1] not in PADDING)


def registers(usage: str) -> int:
    """Registers a thread, of the only kernel in the report."""
    (count,) = re.findall(r"\bREG:(\d+)", usage)
    return int(count)


def table(found: list[Kernel]) -> str:
    """Instructions per element by kernel."""
    lines = ["| Kernel | SASS instructions | warps | registers | instructions per element (static) |"]
    lines += ["| --- | ---: | ---: | ---: | ---: |"]
    for kernel in found:
        ratio = "" if kernel.per_element is None else f"{kernel.per_element:.1f}"
        cells = (f"{kernel.codec}: {kernel.name}", kernel.opcodes.total(), kernel.num_warps, kernel.registers, ratio)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
