"""What checksums and leases cost: the connector as it is beside the same without them, as a Markdown table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from benchmarks.contenders import GUARDED, UNGUARDED, Sample
from benchmarks.report import by_case


def markdown_table(samples: Iterable[Sample]) -> str:
    """Medians of the time to first token and of the seconds added, and how they compare.

    Ratio: guarded to unguarded time to first token, of the medians; the range is that of the repetitions, pair by pair.
    """
    lines = [
        "| Rate | Prompt | Connector | Guarded s | Unguarded s | Ratio | Range | Guarded added s | Unguarded added s |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    cases = by_case(samples)
    for case, guarded in sorted(cases.items()):
        without = cases.get(case._replace(connector=case.connector.replace(f", {GUARDED})", f", {UNGUARDED})")))
        if not case.connector.endswith(f", {GUARDED})") or without is None:
            continue
        with_s, without_s = (_medians(group, "first_token_s") for group in (guarded, without))
        pairs = [one.first_token_s / other.first_token_s for one, other in zip(guarded, without, strict=True)]
        name = case.connector.replace(f", {GUARDED})", ")")
        cells = [case.rate, str(case.num_tokens), name, f"{with_s:.3f}", f"{without_s:.3f}"]
        cells += [f"{with_s / without_s:.3f}", f"{min(pairs):.3f} to {max(pairs):.3f}"]
        cells += [f"{_medians(group, 'added_s'):.3f}" for group in (guarded, without)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _medians(samples: list[Sample], figure: str) -> float:
    return float(statistics.median(getattr(sample, figure) for sample in samples))
