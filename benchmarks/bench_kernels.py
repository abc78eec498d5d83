"""The Triton codecs on a GPU: encode and decode of paged bf16 KV, beside a device copy of the same bytes.

    python -m benchmarks.bench_kernels [--codecs raw split pack4] [--sizes 1 64 4096] [--repeats 20]

Rates are TB/s of bf16 KV from call to completion on the stream, medians; a copy of as many bytes reads and writes each
once. The KV is made up: normal values with a scale of their own in each channel. Every slab is decoded into other
blocks and compared bit by bit before anything is timed. The share of SMs that a link needs is computed, not measured:
the KV that fills the link over the KV that all SMs code, as if rate grew with SMs. Results go to
`benchmarks/results/kernels.jsonl`. Without a CUDA device it says so, records nothing and exits with 0.

`--static` needs no GPU: it compiles the kernels for sm_90, prints machine instructions an element, and records nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import kernel_static, machine
from benchmarks.report import append_line, settings
from benchmarks.shapes import Shape, hnd
from pdkv_connector.codec.base import Codec, KVMemory, SlabPart
from pdkv_connector.codec.registry import FACTORIES, create_codec
from pdkv_connector.types import Span

RESULTS = Path(__file__).resolve().parent / "results"
MIB = 1 << 20
SIZES_MIB = (1, 4, 16, 64, 256, 1024, 4096)
LINKS_GBIT = (100, 200, 400)
NUM_HEADS, HEAD_DIM, BLOCK_SIZE = 8, 128, 16
TOKEN_BYTES = 2 * NUM_HEADS * HEAD_DIM * 2
"""One token in one layer, K and V: 4 KiB, as in Llama-3.1-8B."""
MAX_TOKENS = 16384


@dataclass(frozen=True)
class Row:
    """One codec at one size; seconds of every repetition. `copy_s` is the device copy of `raw_bytes`."""

    codec: str
    raw_bytes: int
    encoded_bytes: int
    encode_s: tuple[float, ...]
    decode_s: tuple[float, ...]
    copy_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return self.raw_bytes / self.encoded_bytes

    def rate(self, direction: str) -> float:
        """TB/s of KV: `encode`, `decode` or `copy`."""
        return self.raw_bytes / float(median(getattr(self, f"{direction}_s"))) / 1e12

    def sm_share(self, direction: str, link_gbit: float) -> float:
        """Share of the device that keeps a link of `link_gbit` Gb/s full of encoded KV; above 1 it cannot."""
        return link_gbit / 8e3 * self.ratio / self.rate(direction)


def slab_geometry(raw_bytes: int) -> tuple[int, int]:
    """Layers and tokens of a slab of `raw_bytes`: as many tokens as it takes, more layers past `MAX_TOKENS`."""
    num_tokens = min(raw_bytes // TOKEN_BYTES, MAX_TOKENS)
    return raw_bytes // (num_tokens * TOKEN_BYTES), num_tokens


def make_kv(num_layers: int, num_tokens: int, device: str) -> KVMemory:
    """Paged bf16 KV: normal values, each channel with a scale of its own, from 1/8 to 8."""
    import torch

    torch.manual_seed(5)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    region = hnd(Shape(num_blocks, BLOCK_SIZE, NUM_HEADS, HEAD_DIM))
    scale = torch.exp2(6 * torch.rand(NUM_HEADS, 1, 2 * HEAD_DIM, device=device) - 3)
    size = (num_blocks, NUM_HEADS, BLOCK_SIZE, 2 * HEAD_DIM)
    layers = [(torch.randn(size, device=device) * scale).bfloat16().view(-1) for _ in range(num_layers)]
    return KVMemory((region,) * num_layers, tuple(layers))


def seconds(device: str, action: Callable[[], Any]) -> float:
    """Seconds of `action` on the current stream, by events; on a CPU by the clock."""
    import torch

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


def measure(name: str, raw_bytes: int, repeats: int, device: str = "cuda") -> Row:
    """One codec at one size. Raises AssertionError when a slab does not come back bit by bit."""
    import torch

    num_layers, num_tokens = slab_geometry(raw_bytes)
    memory = make_kv(num_layers, num_tokens, device)
    table = torch.randperm(memory.regions[0].num_blocks).tolist()
    part = SlabPart(tuple(range(num_layers)), (table,) * num_layers, Span(0, num_tokens), Span(0, NUM_HEADS))
    codec = create_codec(name, device)
    out = torch.zeros(codec.max_encoded_bytes(memory, part), dtype=torch.uint8, device=device)
    encoded_bytes = codec.encode(memory, part, out)
    check(codec, memory, part, out[:encoded_bytes])
    back, other = KVMemory(memory.regions, tuple(t.clone() for t in memory.tensors)), out.clone()

    def timed(action: Callable[[], Any]) -> tuple[float, ...]:
        action()
        return tuple(seconds(device, action) for _ in range(repeats))

    return Row(
        codec=name,
        raw_bytes=num_layers * num_tokens * TOKEN_BYTES,
        encoded_bytes=encoded_bytes,
        encode_s=timed(lambda: codec.encode(memory, part, out)),
        decode_s=timed(lambda: codec.decode(back, part, out[:encoded_bytes])),
        copy_s=timed(lambda: other.copy_(out)),
    )


def check(codec: Codec, memory: KVMemory, part: SlabPart, payload: Any) -> None:
    """Decode `payload` into cleared blocks and compare all of them: the slab covers every block."""
    import torch

    found = KVMemory(memory.regions, tuple(torch.zeros_like(tensor) for tensor in memory.tensors))
    codec.decode(found, part, payload)
    for layer, pair in enumerate(zip(memory.tensors, found.tensors, strict=True)):
        wanted, got = (tensor.view(torch.int16) for tensor in pair)
        assert torch.equal(wanted, got), f"{codec.name}: layer {layer} does not come back bit by bit"


def device_facts() -> dict[str, Any]:
    """Name, SMs, driver and CUDA version of the device."""
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    facts = torch.cuda.get_device_properties(0)
    return {"name": facts.name, "num_sms": facts.multi_processor_count, "driver": driver, "cuda": torch.version.cuda}


def rate_table(rows: list[Row]) -> str:
    """Rates by codec and size."""
    lines = ["| Codec | MiB of KV | ratio | encode TB/s | decode TB/s | copy TB/s |", "| --- " + "| ---: " * 5 + "|"]
    for row in rows:
        rates = " | ".join(f"{row.rate(direction):.3f}" for direction in ("encode", "decode", "copy"))
        lines.append(f"| {row.codec} | {row.raw_bytes / MIB:g} | {row.ratio:.3f} | {rates} |")
    return "\n".join(lines)


def share_table(rows: list[Row]) -> str:
    """Computed share of SMs by codec and link, from each codec's largest slab."""
    largest = {row.codec: row for row in sorted(rows, key=lambda row: row.raw_bytes)}
    lines = [
        "| Codec | Link Gb/s | SMs to encode (computed) | SMs to decode (computed) |",
        "| --- | ---: | ---: | ---: |",
    ]
    for row in largest.values():
        for link in LINKS_GBIT:
            encode, decode = (100 * row.sm_share(direction, link) for direction in ("encode", "decode"))
            lines.append(f"| {row.codec} | {link} | {encode:.1f} % | {decode:.1f} % |")
    return "\n".join(lines)


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
    import torch

    args = parse(argv)
    if args.static:
        print("Static: SASS for sm_90, each instruction counted once however often a loop runs it; not a measurement\n")
        print(kernel_static.table([kernel_static.count(launch) for launch in kernel_static.LAUNCHES]))
        return 0
    if not torch.cuda.is_available():
        print("bench_kernels: there is no CUDA device on this machine; nothing was measured and nothing recorded")
        return 0
    described = {**machine.describe(), "device": device_facts()}
    rows = [measure(codec, size * MIB, args.repeats) for codec in args.codecs for size in args.sizes]
    line = {"bench": "kernels", "machine": described, "settings": settings(args)}
    append_line(args.out, {**line, "rows": [asdict(row) for row in rows]})
    print(f"{rate_table(rows)}\n\n{share_table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
