"""What one check of `pdkv doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "fault"]


@dataclass(frozen=True)
class Finding:
    """`fix` says what to do about a fault, in words that can be acted on; a note needs nothing done."""

    name: str
    state: State
    detail: str
    fix: str = ""


def ok(name: str, detail: str) -> Finding:
    """As it should be."""
    return Finding(name, "ok", detail)


def note(name: str, detail: str) -> Finding:
    """Worth knowing, no fault."""
    return Finding(name, "note", detail)


def fault(name: str, detail: str, fix: str) -> Finding:
    """Something that will not work."""
    return Finding(name, "fault", detail, fix)
