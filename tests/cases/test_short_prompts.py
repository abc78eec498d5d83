"""C01, C23: prompts that do not fill their blocks."""

from __future__ import annotations

from typing import Any

import pytest

from pdkv_connector.adapters.vllm.consumer_scheduler import ConsumerScheduler
from pdkv_connector.adapters.vllm.step_plan import SendStep
from pdkv_connector.types import Span
from tests.cases.conftest import OpenPair
from tests.cases.pair import DECODED, Pair
from tests.cases.planted import caught, plant
from tests.cases.text import Text

BLOCK_SIZE = 16


def test_case_c01_a_prompt_shorter_than_a_block_arrives(open_pair: OpenPair) -> None:
    """LMCache#2459: only full blocks were stored, so that the decode engine waited for a block that never came."""
    pair = open_pair({"block_size": 256}, {"block_size": 256})
    made = pair.transfer(Text(10))
    assert pair.decode.num_computed[made] == DECODED
    pair.until_released()


@pytest.mark.parametrize("num_tokens", [17, 50, 100, 111])
def test_case_c23_a_prompt_that_ends_inside_a_block_arrives_whole(pair: Pair, num_tokens: int) -> None:
    """vllm#21074: the last, partial block was left out, and the decode engine attended to what lay there before."""
    made = pair.transfer(Text(num_tokens))
    assert pair.decode.num_computed[made] == DECODED
    pair.until_released()


def whole_blocks(tokens: Span) -> Span:
    return Span(tokens.start, max(tokens.start, tokens.stop // BLOCK_SIZE * BLOCK_SIZE))


def _send_whole_blocks(original: property) -> property:
    return property(lambda self: whole_blocks(original.__get__(self)))


def _fetch_whole_blocks(original: Any) -> Any:
    return lambda *args: whole_blocks(original(*args))


def test_case_c01_c23_control_a_partial_block_that_is_not_sent(open_pair: OpenPair, pair: Pair) -> None:
    fault = plant(SendStep, "ready", _send_whole_blocks)
    with caught("no answer of the decode engine", fault):
        test_case_c01_a_prompt_shorter_than_a_block_arrives(open_pair)
    with caught("no answer of the decode engine", fault):
        test_case_c23_a_prompt_that_ends_inside_a_block_arrives_whole(pair, 100)


def test_case_c23_control_a_partial_block_that_is_promised_and_not_fetched(pair: Pair) -> None:
    with caught("attends to wrong KV", plant(ConsumerScheduler, "_needs", _fetch_whole_blocks)):
        test_case_c23_a_prompt_that_ends_inside_a_block_arrives_whole(pair, 100)
