"""A session with one fault, and the faults that are mere absences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

Method = Callable[..., Any]


@dataclass(frozen=True)
class Mutant:
    """`make(original)` replaces `owner.attribute`, or the entry `attribute` of a dispatch table.

    A fault that is in two places has a `partner`, planted with it.
    """

    name: str
    owner: Any
    attribute: Any
    make: Callable[[Any], Any]
    partner: Mutant | None = None

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The fault is there inside the `with`."""
        table = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        original = table[self.attribute]
        self._put(self.make(original))
        try:
            with self.partner.planted() if self.partner else nullcontext():
                yield
        finally:
            self._put(original)

    def _put(self, value: Any) -> None:
        if isinstance(self.owner, dict):
            self.owner[self.attribute] = value
        else:
            setattr(self.owner, self.attribute, value)


def nothing(_original: Any) -> Method:
    return lambda *_args, **_kwargs: None


def never(_original: Any) -> property:
    return property(lambda _self: False)
