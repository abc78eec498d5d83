"""The wrong outcome of a case, planted: a test is worth something only if it fails then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest

from tests.simulator.mutant import Mutant
from tests.unit.runtime import rank

PATIENCE_S = 2.0
"""A planted hang is seen after this long."""


def plant(owner: Any, attribute: Any, make: Callable[[Any], Any]) -> Mutant:
    """A fault without a name of its own: the test that plants it has one."""
    return Mutant("", owner, attribute, make)


@contextmanager
def caught(symptom: str, *faults: Mutant, error: type[BaseException] = AssertionError) -> Iterator[None]:
    """What runs inside must fail for `symptom`, a pattern, while `faults` are there.

    An error that it expects and that does not come is a failure too.
    """
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(fault.planted())
        if symptom.startswith("no "):  # as `wait_until` says it
            stack.enter_context(mock.patch.object(rank, "PATIENCE_S", PATIENCE_S))
        stack.enter_context(pytest.raises((error, pytest.fail.Exception), match=symptom))
        yield


def nothing(_original: Any) -> Callable[..., None]:
    """A method that does nothing at all."""
    return lambda *_args, **_kwargs: None
