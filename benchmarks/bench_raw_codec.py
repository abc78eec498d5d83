"""Raw codec on one core, per layout, beside torch's advanced indexing (which allocates its result) in the same run.

    python benchmarks/bench_raw_codec.py [--tokens 4096] [--repeats 9] [--json FILE]

GB/s of KV payload (each byte is read once and written once) per second of the thread's CPU time, medians. CPU time, so
that a neighbour on the same machine does not count as the codec's own slowness.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks.shapes import LAYOUTS, Shape, make_memory, mla, to_torch
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.codec.raw import RawCodec
from pdkv_connector.layout.region import Region
from pdkv_connector.types import Span

SHAPES = {
    "3 heads x 64, block 128": (3, 64, 128),
    "1 head x 256, block 128": (1, 256, 128),
    "8 heads x 128, block 16": (8, 128, 16),
    "8 heads x 128, block 32": (8, 128, 32),
}


def rate(num_bytes: int, repeats: int, action: Callable[[], object]) -> float:
    """Median GB/s of `action`, which moves `num_bytes`; one run first to warm up."""
    action()
    seconds = []
    for _ in range(repeats):
        start = time.thread_time()
        action()
        seconds.append(time.thread_time() - start)
    return num_bytes / median(seconds) / 1e9


def torch_peer(region: Region, tensor: Any, table: list[int], num_tokens: int) -> tuple[Callable[[], Any], Any]:
    """Gather by advanced indexing of a strided view, the usual way in torch; None where the layout is packed."""
    if any(plane.token.factor != 1 or plane.dim.factor != 1 for plane in region.planes):
        return (lambda: None), None
    blocks = torch.tensor(table)
    size = (region.num_blocks, region.num_heads, region.block_size, region.head_dim)
    views = [
        tensor.as_strided(
            size,
            (region.block_stride, region.head_stride, plane.token.outer_stride, plane.dim.outer_stride),
            plane.base,
        )
        for plane in region.planes
    ]
    flat = (region.num_heads, -1, region.head_dim)

    def gather() -> Any:
        return torch.stack([view[blocks].transpose(0, 1).reshape(flat)[:, :num_tokens] for view in views])

    return gather, gather()


def measure(layout: str, shape: Shape, num_tokens: int, repeats: int) -> dict[str, float | str | None]:
    """Rates of one layout and shape; the peer's result is compared first."""
    build = mla if layout == "mla" else LAYOUTS[layout]
    region = build(shape)
    arrays = make_memory((region,), 1)
    memory = KVMemory(arrays.regions, (to_torch(arrays.tensors[0], shape.dtype),))
    table = np.random.default_rng(2).permutation(shape.num_blocks).tolist()
    part = SlabPart((0,), (table,), Span(0, num_tokens), Span(0, shape.num_heads))
    codec = RawCodec()
    out = np.zeros(codec.max_encoded_bytes(memory, part), np.uint8)
    peer, found = torch_peer(region, memory.tensors[0], table, num_tokens)
    codec.encode(memory, part, out)
    if found is not None and found.contiguous().view(torch.uint8).numpy().tobytes() != out.tobytes():
        raise SystemExit(f"{layout}: torch and the codec disagree")
    return {
        "layout": layout,
        "gather_gb_per_s": rate(out.size, repeats, lambda: codec.encode(memory, part, out)),
        "scatter_gb_per_s": rate(out.size, repeats, lambda: codec.decode(memory, part, out)),
        "torch_gather_gb_per_s": None if found is None else rate(out.size, repeats, peer),
    }


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    RawCodec().warm_up()
    print(f"{options.dtype}, {options.tokens} tokens, one core, GB/s of KV, median of {options.repeats}")
    print(f"{'shape':26}{'layout':14}{'gather':>8}{'scatter':>9}{'torch gather':>14}")
    rows = []
    for name, layout, shape in cells(options.tokens, options.dtype):
        row = {"shape": name, **measure(layout, shape, options.tokens, options.repeats)}
        rows.append(row)
        peer = row["torch_gather_gb_per_s"]
        rates = f"{row['gather_gb_per_s']:8.2f}{row['scatter_gb_per_s']:9.2f}"
        print(f"{name:26}{layout:14}{rates}{'-' if peer is None else format(peer, '.2f'):>14}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def cells(num_tokens: int, dtype: str) -> Iterator[tuple[str, str, Shape]]:
    """Every shape in every layout that can hold it; MLA as DeepSeek has it."""
    for name, (num_heads, head_dim, block_size) in SHAPES.items():
        shape = Shape(-(-num_tokens // block_size), block_size, num_heads, head_dim, dtype)
        for layout in LAYOUTS:
            if layout != "cpu_amx" or (block_size % 32 == 0 and dtype == "bfloat16"):
                yield name, layout, shape
    yield "latent 576, block 64", "mla", Shape(-(-num_tokens // 64), 64, 1, 576, dtype)


if __name__ == "__main__":
    main()
