"""Results of bench_codec as Markdown tables and as a picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

OURS = {"split": "black", "pack4": "dimgray"}
"""Contenders drawn apart from the others, as stars of these colours."""


@dataclass(frozen=True)
class Row:
    """One contender on one set of slabs. Bits are per element, payloads over elements; seconds are CPU seconds a pass.

    `bits` is measured on slabs with both planes, `bits_k` and `bits_v` on slabs of one plane each, `worst_bits` on the
    slab that shrank least.
    """

    contender: str
    data: str
    dtype: str
    num_tokens: int
    elem_bytes: int
    raw_bytes: int
    bits: float
    bits_k: float
    bits_v: float
    worst_bits: float
    encode_s: tuple[float, ...] = ()
    decode_s: tuple[float, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def mean_bits(rows: Iterable[Row]) -> float:
    """Bits per element, mean over K and V of every set in `rows`, each counted once."""
    return float(np.mean([bits for row in rows for bits in (row.bits_k, row.bits_v)]))


def ratio(rows: list[Row]) -> float:
    """Raw bits over the mean encoded bits."""
    return 8 * rows[0].elem_bytes / mean_bits(rows)


def rate(rows: Iterable[Row], direction: str) -> float:
    """GB/s of raw KV over all of `rows`: their bytes over the sum of their median seconds."""
    rows = list(rows)
    seconds = sum(float(np.median(getattr(row, f"{direction}_s"))) for row in rows)
    return sum(row.raw_bytes for row in rows) / seconds / 1e9


def by_contender(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by contender, in the order first measured."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.contender, []).append(row)
    return groups


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(names: list[str]) -> list[str]:
    return [_line(names), _line(["---", *["---:"] * (len(names) - 1)])]


def speed_table(rows: list[Row], missing: dict[str, str]) -> str:
    """Bits of K and V by model, their mean, the ratio and the rates; contenders that could not run stand below."""
    models = list(dict.fromkeys(row.data for row in rows))
    lines = _head(
        ["Codec", *(f"{model} {plane}" for model in models for plane in "KV"), "mean bits", "ratio", "encode GB/s",
         "decode GB/s"]
    )  # fmt: skip
    for name, group in by_contender(rows).items():
        bits = {row.data: row for row in group}
        cells = [f"{value:.2f}" for model in models for value in (bits[model].bits_k, bits[model].bits_v)]
        cells += [f"{mean_bits(group):.2f}", f"{ratio(group):.3f}"]
        lines.append(_line([name, *cells, f"{rate(group, 'encode'):.2f}", f"{rate(group, 'decode'):.2f}"]))
    width = 2 * len(models) + 4
    lines += [_line([name, f"not measured: {why}", *[""] * (width - 1)]) for name, why in missing.items()]
    return "\n".join(lines)


def synthetic_table(rows: list[Row]) -> str:
    """Bits per element of the worst slab, and rates, on data that is not KV."""
    kinds = list(dict.fromkeys(row.data for row in rows))
    lines = _head(["Codec", *(f"{kind}: {what}" for kind in kinds for what in ("worst bits", "enc GB/s", "dec GB/s"))])
    for name, group in by_contender(rows).items():
        of = {row.data: row for row in group}
        cells = []
        for kind in kinds:
            rates = (rate([of[kind]], direction) for direction in ("encode", "decode"))
            cells += [f"{of[kind].worst_bits:.2f}", *(f"{value:.2f}" for value in rates)]
        lines.append(_line([name, *cells]))
    return "\n".join(lines)


def dtype_table(rows: list[Row]) -> str:
    """Ratio by dtype: K and V of each model, and the mean of all."""
    models = list(dict.fromkeys(row.data for row in rows))
    lines = _head(
        ["dtype, codec", *(f"{model} {plane}" for model in models for plane in "KV"), "mean bits", "mean ratio"]
    )
    for (dtype, name), group in _by_dtype(rows).items():
        of = {row.data: row for row in group}
        raw_bits = 8 * group[0].elem_bytes
        cells = [f"{raw_bits / bits:.3f}" for model in models for bits in (of[model].bits_k, of[model].bits_v)]
        lines.append(_line([f"{dtype}, {name}", *cells, f"{mean_bits(group):.2f}", f"{ratio(group):.3f}"]))
    return "\n".join(lines)


def _by_dtype(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.dtype, row.contender), []).append(row)
    return groups


def draw(path: Path, rows: list[Row], title: str) -> None:
    """Ratio against speed, one panel for encode and one for decode; up and to the right is better."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot, ticker

    groups = by_contender(rows)
    others = [name for name in groups if name not in OURS]
    styles: dict[str, dict[str, Any]] = {
        name: {"marker": "osD^Pv<>X"[i % 9], "s": 55, "color": f"C{i % 10}", "alpha": 0.75}
        for i, name in enumerate(others)
    }
    styles |= {name: {"marker": "*", "s": 200, "color": color} for name, color in OURS.items()}
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.6), sharex=True, sharey=True)
    for axis, direction in zip(axes, ("encode", "decode"), strict=True):
        for name, group in groups.items():
            axis.scatter(ratio(group), rate(group, direction), label=name, zorder=3, **styles[name])
        axis.set(title=direction, xlabel="ratio (mean of K and V of both models)", yscale="log")
        axis.grid(which="both", alpha=0.3)
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes[0].set_ylabel("GB/s of bfloat16 a core")
    figure.suptitle(title, fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="center right", fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0, 0.83, 1))
    figure.savefig(path, dpi=120)
