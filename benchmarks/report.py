"""Results as JSON lines, as a Markdown table, as a picture."""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contenders import COLOCATED, Sample


class Case(NamedTuple):
    """What the repetitions of one figure share."""

    rate: str
    num_tokens: int
    connector: str


def append_run(path: Path, machine: dict[str, Any], settings: dict[str, Any], samples: Iterable[Sample]) -> None:
    """Append one line: machine, settings, every repetition."""
    rows = [sample.as_row() for sample in samples]
    append_line(path, {"bench": "ttft", "machine": machine, "settings": settings, "samples": rows})


def read_runs(path: Path) -> list[list[Sample]]:
    """The samples of each run in a file of results, oldest run first; runs of any age."""
    return [[Sample.from_row(row) for row in json.loads(line)["samples"]] for line in path.read_text().splitlines()]


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Append one JSON line to a file of results, whose folder need not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What a reader needs to repeat a run, as JSON can hold it."""
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}


def by_case(samples: Iterable[Sample]) -> dict[Case, list[Sample]]:
    """Repetitions by case, in the order first measured."""
    cases: dict[Case, list[Sample]] = defaultdict(list)
    for sample in samples:
        cases[Case(sample.rate, sample.num_tokens, sample.connector)].append(sample)
    return cases


def _median(samples: list[Sample], figure: str) -> float:
    return float(statistics.median(getattr(sample, figure) for sample in samples))


def markdown_table(samples: Iterable[Sample]) -> str:
    """Medians by case, with the range of the added seconds."""
    lines = [
        "| Rate | Prompt | Connector | Prefill alone s | First token s | Added s | Range | Exposed s | MB | Codec |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for case, group in sorted(by_case(samples).items()):
        added = [sample.added_s for sample in group]
        figures = (_median(group, "own_prefill_s"), _median(group, "first_token_s"), _median(group, "added_s"))
        cells = [case.rate, str(case.num_tokens), case.connector, *(f"{figure:.2f}" for figure in figures)]
        cells += [f"{min(added):.2f} to {max(added):.2f}", f"{_median(group, 'exposed_s'):.2f}"]
        cells += [f"{_median(group, 'link_bytes') / 1e6:.1f}", codecs_used(group)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def codecs_used(samples: Iterable[Sample]) -> str:
    """Codecs by share of the slabs: `split`, or `raw 25 %, split 75 %`; empty where none are known."""
    slabs: Counter[str] = Counter()
    for sample in samples:
        slabs.update(sample.slabs)
    if len(slabs) < 2:
        return "".join(slabs)
    return ", ".join(f"{codec} {100 * count / slabs.total():.0f} %" for codec, count in sorted(slabs.items()))


def draw(path: Path, samples: list[Sample], title: str) -> None:
    """One panel per rate: added seconds by prompt length, a bar per connector, repetitions as dots."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    cases = {case: group for case, group in by_case(samples).items() if case.connector != COLOCATED}
    rates = list(dict.fromkeys(case.rate for case in cases))
    lengths = sorted({case.num_tokens for case in cases})
    connectors = list(dict.fromkeys(case.connector for case in cases))
    if not cases:
        return
    figure, axes = pyplot.subplots(1, len(rates), figsize=(4 * len(rates), 3.6), squeeze=False)
    width = 0.8 / len(connectors)
    for axis, rate in zip(axes[0], rates, strict=True):
        for index, connector in enumerate(connectors):
            groups = [
                (i, cases[Case(rate, n, connector)]) for i, n in enumerate(lengths) if (rate, n, connector) in cases
            ]
            places = [place + index * width for place, _ in groups]
            medians = [_median(group, "added_s") for _, group in groups]
            axis.bar(places, medians, width, label=connector, color=f"C{index}", alpha=0.75)
            for place, (_, group) in zip(places, groups, strict=True):
                axis.plot([place] * len(group), [s.added_s for s in group], "k.", markersize=4)
        axis.set_xticks([i + width * (len(connectors) - 1) / 2 for i in range(len(lengths))], [str(n) for n in lengths])
        axis.set(title=rate, xlabel="prompt tokens")
    axes[0][0].set_ylabel("seconds added to the first token")
    axes[0][0].legend()
    figure.suptitle(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
