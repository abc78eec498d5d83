"""Draws one transfer: prefill chunks above, its slabs below, on one time axis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pdkv_connector.telemetry.timeline import Slab, Transfer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = 2**20
PREFILL, WIRE, SCATTER, WAIT = "#4c72b0", "#dd8452", "#55a868", "#c44e52"


def draw(transfer: Transfer, path: Path, first_token_at: float | None = None) -> None:
    """Write a PNG to `path`; `first_token_at` (unix seconds) marks the decode engine's first token.

    Raises PdkvError where the producer's timeline is missing.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(11, 6.5), height_ratios=[1, 4], layout="constrained"
    )
    _chunks(above, transfer)
    _slabs(below, transfer)
    for axes in (above, below):
        _landmarks(axes, transfer, first_token_at)
    below.legend(*_legend(below), loc="upper left", framealpha=0.95)
    above.set_title(headline(transfer), loc="left", fontsize=11)
    below.set_xlabel("seconds since prefill began")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def headline(transfer: Transfer) -> str:
    """The picture in one sentence."""
    tokens = max(chunk.stop for chunk in transfer.chunks)
    moved = f"{tokens:,} prompt tokens, {transfer.moved_bytes / MIB:,.1f} MiB of KV in {len(transfer.slabs)} slabs"
    if transfer.hidden_share is None or transfer.exposed_s is None:
        return f"{moved}; the transfer did not complete"
    return (
        f"{moved}\n{transfer.hidden_share:.1%} had arrived when prefill ended; "
        f"decode waited {transfer.exposed_s * 1e3:,.0f} ms more"
    )


def _chunks(axes: Axes, transfer: Transfer) -> None:
    chunks = sorted(transfer.chunks, key=lambda chunk: chunk.t_start)
    starts = [chunk.t_start - transfer.prefill_start for chunk in chunks]
    widths = [chunk.t_stop - chunk.t_start for chunk in chunks]
    axes.barh([0] * len(chunks), widths, left=starts, height=0.8, color=PREFILL, edgecolor="white")
    if len(chunks) <= 24:
        for chunk, start, width in zip(chunks, starts, widths, strict=True):
            axes.text(start + width / 2, 0, f"{chunk.stop:,}", ha="center", va="center", color="white", fontsize=8)
    axes.set_yticks([0], ["prefill\n(tokens done)"])
    axes.set_ylim(-0.6, 0.6)


def _slabs(axes: Axes, transfer: Transfer) -> None:
    slabs = sorted(transfer.slabs.values(), key=lambda slab: (_first(slab), slab.seq))
    base, arrived = transfer.prefill_start, 0
    for slab in slabs:
        bottom, height = arrived / MIB, slab.num_bytes / MIB
        arrived += slab.num_bytes
        _bar(axes, base, slab.posted, slab.landed, bottom, height, WIRE)
        _bar(axes, base, slab.landed, slab.scattered, bottom, height, SCATTER)
    axes.set_ylim(0, max(arrived / MIB, 0.1) * 1.02)
    axes.set_ylabel("KV, MiB (a slab each row)")


def _bar(
    axes: Axes, base: float, start: float | None, stop: float | None, bottom: float, height: float, color: str
) -> None:
    if start is None or stop is None:
        return
    least_s = 0.002  # Below this a bar would vanish between two pixels.
    axes.barh([bottom], [max(stop - start, least_s)], left=[start - base], height=height, align="edge", color=color)


def _landmarks(axes: Axes, transfer: Transfer, first_token_at: float | None) -> None:
    prefill_s = transfer.prefill_s
    axes.axvline(prefill_s, color=PREFILL, linewidth=1.2, linestyle="--")
    if transfer.complete_at is not None and transfer.exposed_s:
        axes.axvspan(prefill_s, prefill_s + transfer.exposed_s, color=WAIT, alpha=0.25, linewidth=0)
    if first_token_at is not None:
        axes.axvline(first_token_at - transfer.prefill_start, color="black", linewidth=1.2, linestyle=":")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _legend(axes: Axes) -> tuple[list[object], list[str]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[object] = [Patch(color=WIRE), Patch(color=SCATTER), Line2D([], [], color=PREFILL, linestyle="--")]
    labels = ["posted to landed", "landed to scattered", "prefill ends"]
    if any(line.get_color() == "black" for line in axes.lines):
        handles.append(Line2D([], [], color="black", linestyle=":"))
        labels.append("client has the first token")
    return [*handles, Patch(color=WAIT, alpha=0.25)], [*labels, "decode waits for KV"]


def _first(slab: Slab) -> float:
    times = [t for t in (slab.posted, slab.landed, slab.scattered) if t is not None]
    return min(times, default=0.0)
