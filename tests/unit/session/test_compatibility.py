"""Refusals name the fact and both values; the wants of all legs together are what a consumer needs, exactly once."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdkv_connector.errors import HandshakeRefused
from pdkv_connector.layout.topology import feeds, kv_heads_of
from pdkv_connector.session.compatibility import check_facts, decoders, plan_wants, token_head_bytes
from pdkv_connector.session.messages import Facts, Hello, LayerFact, RingSpec
from pdkv_connector.types import Span

NUM_LAYERS = 4


def facts(num_kv_heads: int, tp_rank: int, tp_size: int, layers: range = range(NUM_LAYERS)) -> Facts:
    heads = kv_heads_of(num_kv_heads, tp_rank, tp_size)
    named = tuple(LayerFact(f"layer{index}", 2, heads, 64, "bfloat16", 0) for index in layers)
    return Facts("toy/model", "c0ffee", num_kv_heads, tp_rank, tp_size, 0, 1, ("split", "raw"), named)


OURS = facts(4, 0, 1)


def with_layer(base: Facts, **changes: object) -> Facts:
    """`base` with its last layer changed."""
    *rest, last = base.layers
    return msgspec.structs.replace(base, layers=(*rest, msgspec.structs.replace(last, **changes)))


def test_facts_agree_on_the_codecs_both_have_in_the_producers_order() -> None:
    assert check_facts(OURS, OURS) == ("split", "raw")
    assert check_facts(OURS, msgspec.structs.replace(OURS, codecs=("raw", "pack4", "split"))) == ("split", "raw")
    assert check_facts(OURS, msgspec.structs.replace(OURS, codecs=("raw",))) == ("raw",)


def test_decoders_are_the_common_codecs_with_the_consumers_speeds() -> None:
    theirs = msgspec.structs.replace(OURS, codecs=("raw", "pack4", "split"))
    hello = Hello("D", 2, 2, theirs, "sim", b"", RingSpec(0, 32, 4, 0, "DRAM"), (9, 8))
    assert list(decoders(OURS, hello).items()) == [("split", 0), ("raw", 9)]


@pytest.mark.parametrize(
    ("theirs", "names"),
    [
        (msgspec.structs.replace(OURS, model="other/model"), ("model", "'toy/model'", "'other/model'")),
        (msgspec.structs.replace(OURS, model_digest="beef"), ("model_digest", "'c0ffee'", "'beef'")),
        (msgspec.structs.replace(OURS, num_kv_heads=8), ("num_kv_heads", "4", "8")),
        (with_layer(OURS, num_planes=1), ("num_planes of layer layer3", "2", "1")),
        (with_layer(OURS, head_dim=128), ("head_dim of layer layer3", "64", "128")),
        (with_layer(OURS, dtype="float16"), ("dtype of layer layer3", "'bfloat16'", "'float16'")),
        (with_layer(OURS, window=512), ("window of layer layer3", "0", "512")),
        (msgspec.structs.replace(OURS, codecs=("zip",)), ("codec", "('split', 'raw')", "('zip',)")),
        (msgspec.structs.replace(OURS, layers=()), ("layers", "share no layer name")),
    ],
)
def test_a_refusal_names_the_fact_and_both_values(theirs: Facts, names: tuple[str, ...]) -> None:
    with pytest.raises(HandshakeRefused) as refusal:
        check_facts(OURS, theirs)
    assert all(name in str(refusal.value) for name in names), str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_unknown_dtype_is_refused_by_name() -> None:
    with pytest.raises(HandshakeRefused, match="'float3' of layer layer3"):
        check_facts(with_layer(OURS, dtype="float3"), with_layer(OURS, dtype="float3"))


def test_parallel_sizes_and_stages_may_differ() -> None:
    assert check_facts(facts(4, 1, 2, range(2)), facts(4, 0, 4)) == ("split", "raw")


def test_bytes_of_a_token_of_a_head() -> None:
    assert token_head_bytes(OURS.layers[0]) == 2 * 64 * 2


SHAPES = st.tuples(st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 4, 8)))
NEEDS = st.lists(
    st.builds(lambda start, length: Span(start, start + length), st.integers(0, 5), st.integers(0, 9)),
    min_size=NUM_LAYERS,
    max_size=NUM_LAYERS,
)


def elements_by_both_names(
    num_kv_heads: int, p_tp: int, d_tp: int, d_rank: int, stages: tuple[range, ...], needs: list[Span]
) -> tuple[Counter[tuple[str, int, int]], Counter[tuple[str, int, int]]]:
    """(layer, global head, token) of every want, once by the producer's indices and once by the consumer's."""
    theirs, ours = Counter[tuple[str, int, int]](), Counter[tuple[str, int, int]]()
    consumer = facts(num_kv_heads, d_rank, d_tp)
    for feed in feeds(num_kv_heads, p_tp, d_rank, d_tp):
        for stage in stages:
            producer = facts(num_kv_heads, feed.producer_rank, p_tp, stage)
            for part in plan_wants(producer, consumer, needs, feed.global_heads):
                for remote, local in zip(part.want.layers, part.local_layers, strict=True):
                    there, here = producer.layers[remote], consumer.layers[local]
                    theirs.update(
                        (there.name, there.heads.start + head, token)
                        for head in part.want.heads
                        for token in part.want.tokens
                    )
                    ours.update(
                        (here.name, here.heads.start + head, token)
                        for head in part.local_heads
                        for token in part.want.tokens
                    )
    return theirs, ours


@given(SHAPES, st.integers(0, 7), st.booleans(), NEEDS)
def test_wants_cover_the_needs_once_across_tensor_parallel_sizes(
    shape: tuple[int, int, int], rank: int, two_stages: bool, needs: list[Span]
) -> None:
    num_kv_heads, p_tp, d_tp = shape
    stages = (range(1), range(1, NUM_LAYERS)) if two_stages else (range(NUM_LAYERS),)
    d_rank = rank % d_tp
    theirs, ours = elements_by_both_names(num_kv_heads, p_tp, d_tp, d_rank, stages, needs)
    expected = Counter(
        (f"layer{layer}", head, token)
        for layer in range(NUM_LAYERS)
        for head in kv_heads_of(num_kv_heads, d_rank, d_tp)
        for token in needs[layer]
    )
    assert theirs == ours == expected


def test_layers_of_equal_needs_share_a_want() -> None:
    needs = [Span(0, 8), Span(4, 8), Span(0, 8), Span(8, 8)]
    parts = plan_wants(OURS, OURS, needs, Span(0, 4))
    assert [(part.want.layers, part.want.tokens) for part in parts] == [((0, 2), Span(0, 8)), ((1,), Span(4, 8))]
