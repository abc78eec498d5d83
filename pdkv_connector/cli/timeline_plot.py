"""Draws one transfer on one time axis: prefill chunks, the KV that followed them, and how long each slab took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pdkv_connector.telemetry.timeline import Slab, Transfer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = 2**20
PREFILL, POSTED, LANDED, SCATTERED, WAIT = "#4c72b0", "#8172b3", "#dd8452", "#55a868", "#c44e52"


def draw(transfer: Transfer, path: Path, first_token_at: float | None = None) -> None:
    """Write a PNG to `path`; `first_token_at` (unix seconds) marks the client's first token.

    Raises PdkvError where the producer's timeline is missing.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    base = transfer.prefill_start
    figure, panels = pyplot.subplots(
        3, 1, sharex=True, figsize=(11, 7.5), height_ratios=[1, 4, 2], layout="constrained"
    )
    _chunks(panels[0], transfer)
    _progress(panels[1], transfer, base)
    _durations(panels[2], transfer, base)
    for axes in panels:
        _landmarks(axes, transfer, first_token_at)
    panels[1].legend(loc="upper left")
    panels[2].legend(*_first_two(panels[2]), loc="upper left", ncols=2)
    panels[0].set_title(headline(transfer), loc="left", fontsize=11)
    panels[2].set_xlabel("seconds since prefill began")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def headline(transfer: Transfer) -> str:
    """The picture in two lines."""
    tokens = max((chunk.stop for chunk in transfer.chunks), default=0)
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
    if len(chunks) <= 20:
        for chunk, start, width in zip(chunks, starts, widths, strict=True):
            axes.text(start + width / 2, 0, f"{chunk.stop:,}", ha="center", va="center", color="white", fontsize=8)
    axes.set_yticks([0], ["prefill\n(tokens done)"])
    axes.set_ylim(-0.6, 0.6)


def _progress(axes: Axes, transfer: Transfer, base: float) -> None:
    """How much KV had been posted, had landed and had been scattered, slab by slab."""
    slabs = list(transfer.slabs.values())
    for name, color, width in (("posted", POSTED, 3.5), ("landed", LANDED, 2.2), ("scattered", SCATTERED, 1.0)):
        times, total = _cumulative(slabs, name)
        label = f"slabs {name}" + (f": {total[-1] / MIB:,.1f} MiB" if total else ": none")
        axes.step([t - base for t in times], [b / MIB for b in total], where="post", color=color, lw=width, label=label)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("KV, MiB")


def _cumulative(slabs: Sequence[Slab], name: str) -> tuple[list[float], list[int]]:
    events = sorted((t, slab.num_bytes) for slab in slabs if (t := getattr(slab, name)) is not None)
    total, sums = 0, []
    for _, num_bytes in events:
        total += num_bytes
        sums.append(total)
    return [t for t, _ in events], sums


def _durations(axes: Axes, transfer: Transfer, base: float) -> None:
    """One dot a slab: time on the wire, time to scatter."""
    slabs = transfer.slabs.values()
    wire = [(s.landed - base, s.landed - s.posted) for s in slabs if s.landed is not None and s.posted is not None]
    scatter = [
        (s.scattered - base, s.scattered - s.landed) for s in slabs if s.scattered is not None and s.landed is not None
    ]
    for dots, color, label in ((wire, LANDED, "posted to landed"), (scatter, SCATTERED, "landed to scattered")):
        axes.plot([t for t, _ in dots], [d * 1e3 for _, d in dots], ".", color=color, ms=4, label=label)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.3)  # leaves the legend a band of its own
    axes.set_ylabel("ms a slab")


def _landmarks(axes: Axes, transfer: Transfer, first_token_at: float | None) -> None:
    prefill_s = transfer.prefill_s
    axes.axvline(prefill_s, color=PREFILL, lw=1.2, ls="--", label="prefill ends")
    if transfer.exposed_s:
        axes.axvspan(prefill_s, prefill_s + transfer.exposed_s, color=WAIT, alpha=0.25, lw=0, label="decode waits")
    if first_token_at is not None:
        first = first_token_at - transfer.prefill_start
        axes.axvline(first, color="black", lw=1.2, ls=":", label="client has the first token")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _first_two(axes: Axes) -> tuple[list[object], list[str]]:
    handles, labels = axes.get_legend_handles_labels()
    return list(handles[:2]), list(labels[:2])
