"""Ratio and speed of the codecs on one core, beside general compressors, in one run.

    python -m benchmarks.bench_codec [--tokens 256 2048] [--repeats 5] [--contenders split "zstd -1"]

Data: KV of both small models, computed on the spot and cached; random bits, one constant, and exponents that mislead.
A slab is `[layer][plane][head][token][dim]`, 6 layers of 256 tokens or 1 of 2,048. GB/s are raw bytes per second of CPU
time of this process, which does nothing else: threads that a library starts in secret count. Each slab is decoded right
after it is encoded, so that no contender pays for fresh memory. The first pass over each set is not timed: it checks
that every slab comes back bit by bit. Results go to `benchmarks/results/codec.jsonl`, every repetition kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import codec_contenders, codec_report, kv_slabs, machine
from benchmarks.codec_contenders import Contender
from benchmarks.codec_report import Row
from benchmarks.kv_slabs import SlabSet
from benchmarks.report import append_line, settings

RESULTS = Path(__file__).resolve().parent / "results"
DTYPE_CONTENDERS = ("split", "pack4", "zstd -1")
DTYPE_TOKENS = 2048


class NotLossless(AssertionError):
    """A contender gave back other bits than it was given, or changed what it was given."""


def encoded_bits(contender: Contender, slabs: SlabSet) -> list[float]:
    """Bits per element of each slab. Raises NotLossless, naming contender, slab and first wrong byte."""
    bits = []
    for index, slab in enumerate(slabs.bits):
        wanted = slab.tobytes()
        payload = contender.encode(slab)
        for what, found in (("decoded", contender.decode(payload)), ("input", slab.reshape(-1).view(np.uint8))):
            if (got := bytes(found)) != wanted:
                pairs = enumerate(zip(got, wanted, strict=False))
                at = next((i for i, (g, w) in pairs if g != w), min(len(got), len(wanted)))
                raise NotLossless(f"{contender.name}: {slabs.name} slab {index}, {what}: byte {at} is wrong")
        bits.append(8 * contender.size_bytes(payload) / slab.size)
    return bits


def pass_seconds(contender: Contender, slabs: SlabSet) -> tuple[float, float]:
    """CPU seconds to encode all slabs, and to decode them again, one slab after the other."""
    encode_s = decode_s = 0.0
    for slab in slabs.bits:
        start = time.process_time()
        payload = contender.encode(slab)
        middle = time.process_time()
        contender.decode(payload)
        encode_s, decode_s = encode_s + middle - start, decode_s + time.process_time() - middle
    return encode_s, decode_s


def measure(contender: Contender, slabs: SlabSet, repeats: int) -> Row:
    """Check, then time `repeats` passes; all slabs of a set have the same shape, so their bits average plainly."""
    bits, k, v = (encoded_bits(contender, part) for part in (slabs, slabs.plane(0), slabs.plane(1)))
    passes = [pass_seconds(contender, slabs) for _ in range(repeats)]
    return Row(
        contender=contender.name,
        data=slabs.name,
        dtype=slabs.dtype,
        num_tokens=slabs.bits[0].shape[3],
        elem_bytes=slabs.elem_bytes,
        raw_bytes=slabs.num_bytes,
        bits=float(np.mean(bits)),
        bits_k=float(np.mean(k)),
        bits_v=float(np.mean(v)),
        worst_bits=max(bits),
        encode_s=tuple(encode for encode, _ in passes),
        decode_s=tuple(decode for _, decode in passes),
    )


def measure_all(args: argparse.Namespace, entrants: list[Contender]) -> Iterator[Row]:
    """Every contender on every set of bfloat16 slabs."""
    for num_tokens in args.tokens:
        for name in (*kv_slabs.MODELS, *kv_slabs.SYNTHETIC):
            slabs = kv_slabs.real(name, num_tokens) if name in kv_slabs.MODELS else kv_slabs.synthetic(name, num_tokens)
            for contender in entrants:
                yield _noted(measure(contender, slabs, args.repeats))


def measure_dtypes(args: argparse.Namespace) -> Iterator[Row]:
    """Ratios, without times, of the other dtypes."""
    for dtype in args.dtypes:
        found, _ = codec_contenders.contenders(dtype)
        for name in kv_slabs.MODELS:
            slabs = kv_slabs.real(name, DTYPE_TOKENS, dtype)
            for contender in chosen(found, [c for c in DTYPE_CONTENDERS if c in (args.contenders or DTYPE_CONTENDERS)]):
                yield _noted(measure(contender, slabs, 0))


def chosen(found: Iterable[Contender], names: list[str] | None) -> list[Contender]:
    """Those of `found` that `names` lists; all of them when it is None."""
    return [contender for contender in found if names is None or contender.name in names]


def _noted(row: Row) -> Row:
    print(
        f"{row.contender:30}{row.data:12}{row.dtype:16}{row.num_tokens:6}{row.bits:8.3f}", file=sys.stderr, flush=True
    )
    return row


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Command line; every list can be cut short for a quick look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", nargs="+", type=int, default=[256, 2048], help="tokens of a slab")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--contenders", nargs="+", help="names as in the table; all by default")
    parser.add_argument("--dtypes", nargs="*", choices=kv_slabs.DTYPES, default=list(kv_slabs.DTYPES[1:]))
    parser.add_argument("--out", type=Path, default=RESULTS / "codec.jsonl", help="file to append to; picture beside")
    return parser.parse_args(argv)


def show(rows: list[Row], missing: dict[str, str], args: argparse.Namespace) -> None:
    """Print every table."""
    for num_tokens in args.tokens:
        timed = [row for row in rows if row.num_tokens == num_tokens and row.encode_s]
        print(f"\nbfloat16 KV, slabs of {num_tokens} tokens, one core, bits per element\n")
        print(codec_report.speed_table([row for row in timed if row.data in kv_slabs.MODELS], missing))
        print(f"\nData that is not KV, slabs of {num_tokens} tokens, bits per element\n")
        print(codec_report.synthetic_table([row for row in timed if row.data in kv_slabs.SYNTHETIC]))
    if others := [row for row in rows if not row.encode_s]:
        print(f"\nOther dtypes, slabs of {DTYPE_TOKENS} tokens, ratio\n")
        print(codec_report.dtype_table(others))


def main() -> int:
    """Measure, append one line to the results, draw, print the tables."""
    args = parse()
    described, load_1m = machine.describe(), os.getloadavg()[0]
    found, missing = codec_contenders.contenders("bfloat16")
    rows = [*measure_all(args, chosen(found, args.contenders)), *measure_dtypes(args)]
    line = {"bench": "codec", "machine": described, "settings": settings(args), "missing": missing, "load_1m": load_1m}
    append_line(args.out, {**line, "rows": [row.as_json() for row in rows]})
    show(rows, missing, args)
    drawn = [r for r in rows if r.num_tokens == max(args.tokens) and r.encode_s and r.data in kv_slabs.MODELS]
    title = f"bf16 KV of {' and '.join(kv_slabs.MODELS)}, slabs of {max(args.tokens)} tokens, {described['cpu']}"
    codec_report.draw(args.out.with_suffix(".png"), drawn, f"{title}, one core, commit {described['commit'][:7]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
