"""C21, C25: engines whose KV is not alike."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pdkv_connector.session import compatibility, consumer_desk
from pdkv_connector.session.consumer_transfer import ConsumerTransfer
from pdkv_connector.types import Span
from tests.cases.planted import caught, nothing, plant
from tests.unit.runtime import test_endings as endings
from tests.unit.runtime.conftest import OpenRank
from tests.unit.runtime.prompts import NUM_LAYERS, Prompt
from tests.unit.runtime.rank import toy_facts
from tests.unit.runtime.roles import Decode, Prefill

LAYERS = toy_facts().layers


def test_case_c25_a_layer_that_the_producer_lacks_is_named_and_nothing_moves(
    open_rank: OpenRank, decode: Decode
) -> None:
    """sglang#30222: a draft model gave the decode engine one layer more; buffers were paired by position, and the
    transfer broke deep inside, or put V where K belonged.
    """
    there = (*LAYERS[:-1], msgspec.structs.replace(LAYERS[-1], name="of another model"))
    prefill = Prefill(open_rank(facts=toy_facts(layers=there), lease_s=3600))
    prompt = Prompt(60)
    prefill.run(prompt)
    decode.want(prompt, prefill)
    reason = decode.rank.wait_failed(prompt)
    assert "no producer rank supplies layer layer.3 in full" in reason
    assert [decode.rank.num_changed(layer) for layer in range(NUM_LAYERS)] == [0] * NUM_LAYERS
    prefill.rank.wait_released(prompt)


@pytest.mark.parametrize("lacking", [0, 2, 3])
def test_case_c25_a_layer_that_only_the_producer_has_is_left_out(
    open_rank: OpenRank, prefill: Prefill, lacking: int
) -> None:
    """Layers are matched by name: the others arrive where they belong."""
    names = [layer for layer in range(NUM_LAYERS) if layer != lacking]
    decode = Decode(open_rank(facts=toy_facts(layers=tuple(LAYERS[layer] for layer in names))))
    prompt = Prompt(60)
    prefill.run(prompt)
    decode.want(prompt, prefill, needs=tuple(prompt.needs()[layer] for layer in names))
    decode.rank.wait_delivered(prompt)
    prefill.rank.wait_released(prompt)
    _, blocks, needs = decode.wanted.pop(prompt.transfer_id)
    held = [decode.rank.elements(position, blocks, needs[layer]) for position, layer in enumerate(names)]
    assert all((held[position] == prompt.kv(layer, needs[layer])).all() for position, layer in enumerate(names))
    assert decode.rank.num_changed(NUM_LAYERS - 1) == 0


# -- the wrong outcomes -----------------------------------------------------------------------------------------------


def _by_position(original: Any) -> Any:
    """Layers are paired in the order in which each side has them."""

    def plan_wants(producer: Any, consumer: Any, needs: Any, heads: Span) -> Any:
        pairs = zip(producer.layers, consumer.layers, strict=False)
        layers = tuple(msgspec.structs.replace(theirs, name=ours.name) for theirs, ours in pairs)
        return original(msgspec.structs.replace(producer, layers=layers), consumer, needs, heads)

    return plan_wants


def test_case_c21_control_dtypes_are_not_compared(open_rank: OpenRank, prefill: Prefill) -> None:
    with caught("no failure", plant(compatibility, "_check_layer", nothing)):
        endings.test_case_c21_another_dtype_is_refused_with_both_named(open_rank, prefill)


def test_case_c25_control_a_missing_layer_is_not_noticed(open_rank: OpenRank, decode: Decode) -> None:
    with caught("no failure", plant(ConsumerTransfer, "uncovered_layer", lambda _original: lambda *_: "")):
        test_case_c25_a_layer_that_the_producer_lacks_is_named_and_nothing_moves(open_rank, decode)


def test_case_c25_control_layers_are_paired_by_position(open_rank: OpenRank, prefill: Prefill) -> None:
    with caught("assert False", plant(consumer_desk, "plan_wants", _by_position)):
        test_case_c25_a_layer_that_only_the_producer_has_is_left_out(open_rank, prefill, 0)
