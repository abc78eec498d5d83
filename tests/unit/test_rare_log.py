"""Lines that can be caused at will: one an interval, and none is forgotten."""

from __future__ import annotations

import logging

import pytest

from pdkv_connector import rare_log
from pdkv_connector.rare_log import RareLog


def test_the_next_line_tells_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = RareLog(logging.getLogger("rare")), RareLog(logging.getLogger("rare"))
    for number in range(5):
        one.warning("slab %d is damaged", number)
    other.error("no such peer")
    monkeypatch.setattr(rare_log, "INTERVAL_S", 0.0)
    one.warning("slab %d is damaged", 5)
    one.warning("slab %d is damaged", 6)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "slab 0 is damaged"),
        ("ERROR", "no such peer"),
        ("WARNING", "slab 5 is damaged (and 4 more like it since the last line)"),
        ("WARNING", "slab 6 is damaged"),
    ]


def test_a_line_is_of_the_place_that_wrote_it_and_carries_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("planted")
    except ValueError:
        RareLog(logging.getLogger("rare")).exception("it broke")
    (record,) = caplog.records
    assert record.filename == "test_rare_log.py"
    assert "ValueError: planted" in caplog.text
