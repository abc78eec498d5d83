"""Reads the engines' metrics in Prometheus' text format."""

from __future__ import annotations

import re
from collections import Counter

LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self._lines = [(match["name"], match["labels"] or "", float(match["value"])) for match in LINE.finditer(text)]

    def total(self, name: str, label: str = "") -> float:
        """The sum over all series of `name` whose labels contain `label`; 0 where there is none."""
        return sum(value for found, labels, value in self._lines if found == name and label in labels)

    def by(self, name: str, label: str) -> Counter[str]:
        """Sums over the series of `name` by the value of one of their labels; values of 0 are left out."""
        found = Counter[str]()
        for other, labels, value in self._lines:
            if other == name and (match := re.search(rf'\b{label}="([^"]*)"', labels)):
                found[match[1]] += int(value)
        return +found

    def has(self, name: str) -> bool:
        """True when there is a series of that name: a gauge that is gone must not read as 0."""
        return any(found == name for found, _, _ in self._lines)
