"""A prefill engine whose blocks are held for consumers that do not come, while requests wait for blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdkv_connector.adapters.vllm.waiting_queue import WaitingQueue
from pdkv_connector.session.leases import Leases
from tests.cases.pair import DECODED, MAX_TOKENS
from tests.cases.planted import caught, nothing, plant
from tests.cases.text import Text

if TYPE_CHECKING:
    from tests.cases.conftest import OpenPair
    from tests.cases.pair import Pair

SMALL = {"num_blocks": 18, "reclaim_s": 0.3}
"""Blocks for one prompt of 100 tokens, not for two. The lease is an hour."""


def late_consumer(pair: Pair) -> int:
    """The consumer of a first prefill comes when a second has run; returns how many tokens it had to compute."""
    text = Text(100)
    params = pair.params_of(pair.ask_prefill(text))
    second = pair.transfer(Text(100))
    assert pair.decode.num_computed[second] == DECODED
    late = pair.decode.add(text, params, max_tokens=MAX_TOKENS)
    pair.until_answered(late)
    pair.until_released()
    return pair.decode.num_computed[late]


def test_blocks_that_nobody_came_for_go_to_who_waits(open_pair: OpenPair) -> None:
    assert late_consumer(open_pair(SMALL)) == 100 + MAX_TOKENS - 1


def test_blocks_that_nobody_waits_for_are_kept(open_pair: OpenPair) -> None:
    assert late_consumer(open_pair({"reclaim_s": 0.3})) == DECODED


def test_control_nobody_says_that_blocks_are_short(open_pair: OpenPair) -> None:
    with caught("no answer", plant(WaitingQueue, "starves", lambda _: property(lambda self: False))):
        late_consumer(open_pair(SMALL))


def test_control_nothing_is_given_up(open_pair: OpenPair) -> None:
    with caught("no answer", plant(Leases, "reclaim", nothing)):
        late_consumer(open_pair(SMALL))
