"""How a schedule fails."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant did not hold; `rule` is its name, the message says what happened and when."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


def require(holds: bool, rule: str, what: str) -> None:
    """Raise Violation unless `holds`."""
    if not holds:
        raise Violation(rule, what)
