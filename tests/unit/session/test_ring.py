"""The receive ring: no slot lent twice, no serial used twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdkv_connector.session.ring import ReceiveRing
from pdkv_connector.types import Credit


@given(st.integers(1, 5), st.lists(st.tuples(st.sampled_from(("lend", "settle", "renew")), st.integers(0, 9))))
def test_slots_are_lent_once_and_serials_never_repeat(num_slots: int, steps: list[tuple[str, int]]) -> None:
    ring = ReceiveRing(num_slots)
    lent: list[Credit] = []
    serials: list[int] = []
    for step, choice in steps:
        held = lent.pop(choice % len(lent)) if lent and step != "lend" else None
        if held and step == "settle":
            ring.settle(held)
        granted = ring.renew(held) if held and step == "renew" else ring.lend() if step == "lend" else None
        if granted:
            assert not held or granted.slot == held.slot
            lent.append(granted)
            serials.append(granted.serial)
        assert len({credit.slot for credit in lent}) == len(lent) == num_slots - ring.num_free
    assert serials == sorted(set(serials))


def test_an_empty_ring_lends_nothing() -> None:
    ring = ReceiveRing(1)
    assert ring.lend() is not None
    assert ring.lend() is None


def test_a_credit_comes_back_once() -> None:
    ring = ReceiveRing(2)
    credit = ring.lend()
    assert credit is not None
    ring.settle(credit)
    with pytest.raises(KeyError):
        ring.settle(credit)


def test_a_renewed_credit_is_not_the_old_one() -> None:
    ring = ReceiveRing(1)
    credit = ring.lend()
    assert credit is not None
    renewed = ring.renew(credit)
    with pytest.raises(KeyError):
        ring.settle(credit)
    ring.settle(renewed)
    assert ring.num_free == 1
