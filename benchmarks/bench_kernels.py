"""The Triton codecs on a GPU: encode and decode of paged bf16 KV, beside a device copy of the same bytes.

    python -m benchmarks.bench_kernels [--codecs raw split pack4] [--sizes 1 64 4096] [--repeats 20]

Rates are TB/s of bf16 KV from call to completion on the stream, medians; a copy of as many bytes reads and writes each
once. The KV is made up: normal values with a scale of their own in each channel. Every slab is decoded into other
blocks and compared bit by bit before anything is timed. The share of SMs that a link needs is measured by bounding how
many programs a kernel has, one an SM as long as there are no more than SMs. Results go to
`benchmarks/results/kernels.jsonl`. Without a CUDA device it says so, records nothing and exits with 0.

`--static` needs no GPU: it compiles the kernels for sm_90, prints machine instructions an element, and records nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import kernel_report, kernel_static, machine
from benchmarks.kernel_kv import TOKEN_BYTES, make_kv, slab_geometry, whole
from benchmarks.kernel_report import MIB, Row
from benchmarks.report import append_line, settings
from pdkv_connector.codec.base import Codec, KVMemory, SlabPart
from pdkv_connector.codec.registry import FACTORIES, create_codec

RESULTS = Path(__file__).resolve().parent / "results"
SIZES_MIB = (1, 4, 16, 64, 256, 1024, 4096)
PROGRAMS, PROGRAMS_MIB = (4, 8, 16, 32, 64, 128), 64
"""Bounded launches, and the slab they are measured with."""


def seconds(device: str, action: Callable[[], Any]) -> float:
    """Seconds of `action` on the current stream, by events; on a CPU by the clock."""
    if device == "cpu":
        start_s = time.perf_counter()
        action()
        return time.perf_counter() - start_s
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    action()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop)) / 1e3


def measure(codec: Codec, raw_bytes: int, repeats: int, device: str = "cuda", num_programs: int = 0) -> Row:
    """One codec at one size. Raises AssertionError when a slab does not come back bit by bit."""
    num_layers, num_tokens = slab_geometry(raw_bytes)
    memory = make_kv(num_layers, num_tokens, device)
    part = whole(memory)
    out = torch.zeros(codec.max_encoded_bytes(memory, part), dtype=torch.uint8, device=device)
    encoded_bytes = codec.encode(memory, part, out)
    check(codec, memory, part, out[:encoded_bytes])
    back, other = KVMemory(memory.regions, tuple(t.clone() for t in memory.tensors)), out.clone()

    def timed(action: Callable[[], Any]) -> tuple[float, ...]:
        action()
        return tuple(seconds(device, action) for _ in range(repeats))

    return Row(
        codec=codec.name,
        num_programs=num_programs,
        raw_bytes=num_layers * num_tokens * TOKEN_BYTES,
        encoded_bytes=encoded_bytes,
        encode_s=timed(lambda: codec.encode(memory, part, out)),
        decode_s=timed(lambda: codec.decode(back, part, out[:encoded_bytes])),
        copy_s=timed(lambda: other.copy_(out)),
    )


def check(codec: Codec, memory: KVMemory, part: SlabPart, payload: Any) -> None:
    """Decode `payload` into cleared blocks and compare all of them: the slab covers every block."""
    found = KVMemory(memory.regions, tuple(torch.zeros_like(tensor) for tensor in memory.tensors))
    codec.decode(found, part, payload)
    for layer, pair in enumerate(zip(memory.tensors, found.tensors, strict=True)):
        wanted, got = (tensor.view(torch.int16) for tensor in pair)
        assert torch.equal(wanted, got), f"{codec.name}: layer {layer} does not come back bit by bit"


def measure_bounded(codecs: list[str], repeats: int) -> list[Row]:
    """The cascade codecs with few programs; `raw` cannot be bounded."""
    from pdkv_connector.codec.cascade_triton import TritonCascadeCodec

    return [
        measure(TritonCascadeCodec(name, width, programs), PROGRAMS_MIB * MIB, repeats, num_programs=programs)
        for name, width in kernel_static.WIDTHS.items()
        for programs in PROGRAMS
        if name in codecs
    ]


def device_facts() -> dict[str, Any]:
    """Name, SMs, driver and CUDA version of the device."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    facts = torch.cuda.get_device_properties(0)
    return {"name": facts.name, "num_sms": facts.multi_processor_count, "driver": driver, "cuda": torch.version.cuda}


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codecs", nargs="+", default=sorted(FACTORIES), choices=sorted(FACTORIES))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES_MIB), help="MiB of raw KV")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--static", action="store_true", help="count instructions instead of measuring")
    parser.add_argument("--out", type=Path, default=RESULTS / "kernels.jsonl", help="file to append to")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, append one line to the results, print the tables."""
    args = parse(argv)
    if args.static:
        print("Static: SASS for sm_90, each instruction counted once however often a loop runs it; not a measurement\n")
        print(kernel_static.table(list(kernel_static.kernels())))
        return 0
    if not torch.cuda.is_available():
        print("bench_kernels: there is no CUDA device on this machine; nothing was measured and nothing recorded")
        return 0
    described = {**machine.describe(), "device": device_facts()}
    rows = [measure(create_codec(c, "cuda"), size * MIB, args.repeats) for c in args.codecs for size in args.sizes]
    bounded = measure_bounded(args.codecs, args.repeats)
    line = {"bench": "kernels", "machine": described, "settings": settings(args)}
    append_line(args.out, {**line, "rows": [asdict(row) for row in rows + bounded]})
    shares = kernel_report.share_table(bounded, described["device"]["num_sms"])
    print("\n\n".join([kernel_report.rate_table(rows), kernel_report.rate_table(bounded), shares]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
