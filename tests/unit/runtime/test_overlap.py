"""A slab is decoded while the next one arrives."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdkv_connector.telemetry import timeline
from tests.unit.runtime.conftest import OpenRank
from tests.unit.runtime.prompts import Prompt
from tests.unit.runtime.rank import toy_facts
from tests.unit.runtime.roles import CHUNK_TOKENS, Decode, Prefill

Method = Callable[..., None]
LONG_S, SHORT_S = 10.0, 0.1
NUM_HELD = 8


class Gate:
    """Holds each of the first decodings until the next slab has been posted, or until `patience_s` has passed."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._num_posted = self._num_decoded = 0

    def count_posted(self, note: Method) -> Method:
        def counted(*args: Any) -> None:
            note(*args)
            with self._changed:
                self._num_posted += 1
                self._changed.notify_all()

        return counted

    def hold(self, decode: Method) -> Method:
        def held(*args: Any) -> None:
            with self._changed:
                self._num_decoded += 1
                if self._num_decoded <= NUM_HELD:
                    self._changed.wait_for(lambda: self._num_posted > self._num_decoded, self._patience_s)
            decode(*args)

        return held


def overlaps(open_rank: OpenRank, folder: Path, window_slots: int, patience_s: float, codec: str) -> list[bool]:
    """Of each slab held: was the next one posted before this one was scattered?"""
    gate, paths = Gate(patience_s), [folder / name for name in ("producer", "consumer")]
    settings = {"facts": toy_facts(codecs=("raw", "split")), "window_slots": window_slots, "codec": codec}
    prefill = Prefill(open_rank("cpu_amx", 32, timeline_path=str(paths[0]), **settings))
    decode = Decode(open_rank("nhd", 16, timeline_path=str(paths[1]), resend_s=100.0, **settings))
    writer, mover = prefill.rank.runtime.timeline, decode.rank.runtime.mover
    writer.slab = gate.count_posted(writer.slab)  # type: ignore[method-assign]
    mover.decode = gate.hold(mover.decode)  # type: ignore[method-assign]
    prompt = Prompt(CHUNK_TOKENS)
    prefill.run(prompt)
    decode.want(prompt, prefill)
    decode.rank.wait_delivered(prompt)
    assert decode.faults() == []
    slabs = timeline.read(paths)[prompt.transfer_id].slabs
    times = [(slabs[key].posted or 0.0, slabs[key].scattered or 0.0) for key in sorted(slabs)]
    assert len(times) > NUM_HELD
    return [later[0] < earlier[1] for earlier, later in itertools.pairwise(times[: NUM_HELD + 1])]


@pytest.mark.parametrize("codec", ["raw", "split"])
def test_the_next_slab_is_on_its_way_while_one_is_decoded(open_rank: OpenRank, tmp_path: Path, codec: str) -> None:
    assert all(overlaps(open_rank, tmp_path, 4, LONG_S, codec))


def test_with_one_slot_it_is_not(open_rank: OpenRank, tmp_path: Path) -> None:
    """So it is the slots lent ahead that make it so."""
    assert not any(overlaps(open_rank, tmp_path, 1, SHORT_S, "raw"))
