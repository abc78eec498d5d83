"""What came of each fault, kept for the table at the end of the session."""

from __future__ import annotations

from dataclasses import dataclass, field

HEADINGS = ("fault", "state", "outcome", "seconds")


@dataclass
class Record:
    """Rows of the table, in the order of the tests."""

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)

    def note(self, fault: str, state: str, outcome: str, seconds: float | None = None) -> None:
        """One row; `seconds` until the outcome, where that means something."""
        self.rows.append((fault, state, outcome, "" if seconds is None else f"{seconds:.1f}"))

    def lines(self) -> list[str]:
        """The table as text; no lines when nothing was noted."""
        if not self.rows:
            return []
        table = [HEADINGS, *self.rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
        padded = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        return [line.rstrip() for line in padded]


RECORD = Record()
"""Of this session: pytest prints it, see conftest.py."""
