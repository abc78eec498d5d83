"""Can two engines share KV, and which of the producer's KV does a consumer want? Answers name the fact that differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdkv_connector.errors import HandshakeRefused
from pdkv_connector.session.messages import Facts, Hello, LayerFact, Want
from pdkv_connector.types import Span

DTYPE_BYTES = {
    "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "uint8": 1, "int8": 1,
}  # fmt: skip


def token_head_bytes(layer: LayerFact) -> int:
    """Bytes of one token of one head of `layer`, all planes. Raises HandshakeRefused for an unknown dtype."""
    try:
        return layer.num_planes * layer.head_dim * DTYPE_BYTES[layer.dtype]
    except KeyError:
        raise HandshakeRefused(f"KV dtype {layer.dtype!r} of layer {layer.name} is not supported") from None


def check_facts(producer: Facts, consumer: Facts) -> tuple[str, ...]:
    """Returns the codecs both have, as the producer prefers them. Raises HandshakeRefused naming what differs.

    Tensor- and pipeline-parallel sizes may differ; layers are matched by name.
    """
    for fact in ("model", "model_digest", "num_kv_heads"):
        ours, theirs = getattr(producer, fact), getattr(consumer, fact)
        if ours != theirs:
            raise HandshakeRefused(f"{fact} differs: producer has {ours!r}, consumer has {theirs!r}")
    wanted = {layer.name: layer for layer in consumer.layers}
    shared = [layer for layer in producer.layers if layer.name in wanted]
    if not shared:
        raise HandshakeRefused("layers differ: producer and consumer share no layer name")
    for layer in shared:
        _check_layer(layer, wanted[layer.name])
    return _common_codecs(producer, consumer)


def _check_layer(ours: LayerFact, theirs: LayerFact) -> None:
    for fact in ("num_planes", "head_dim", "dtype", "window"):
        if getattr(ours, fact) != getattr(theirs, fact):
            raise HandshakeRefused(
                f"{fact} of layer {ours.name} differs: "
                f"producer has {getattr(ours, fact)!r}, consumer has {getattr(theirs, fact)!r}"
            )
    token_head_bytes(ours)


def _common_codecs(producer: Facts, consumer: Facts) -> tuple[str, ...]:
    common = tuple(codec for codec in producer.codecs if codec in consumer.codecs)
    if not common:
        raise HandshakeRefused(f"no common codec: producer has {producer.codecs}, consumer has {consumer.codecs}")
    return common


def decoders(producer: Facts, hello: Hello) -> dict[str, int]:
    """The codecs both have, as the producer prefers them, and the bytes of KV per second that the consumer decodes.

    Raises HandshakeRefused as `check_facts` does.
    """
    speeds = dict(zip(hello.facts.codecs, hello.decode_bytes_per_s, strict=False))
    return {codec: speeds.get(codec, 0) for codec in check_facts(producer, hello.facts)}


@dataclass(frozen=True, slots=True)
class WantedPart:
    """A Want and the consumer's own names for it: local layer indices and local heads, position by position."""

    want: Want
    local_layers: tuple[int, ...]
    local_heads: Span


def plan_wants(producer: Facts, consumer: Facts, needs: Sequence[Span], global_heads: Span) -> tuple[WantedPart, ...]:
    """The wants of one consumer rank towards one producer rank.

    needs: token range per consumer layer; global_heads: the KV heads this consumer takes from this producer. Layers
    with equal token ranges and heads form one Want, so that consecutive ones can share a slab.
    """
    by_name = {layer.name: index for index, layer in enumerate(producer.layers)}
    groups: dict[tuple[Span, Span, Span], list[tuple[int, int]]] = {}
    for local, layer in enumerate(consumer.layers):
        remote = by_name.get(layer.name)
        if remote is None or not needs[local]:
            continue
        heads = global_heads & producer.layers[remote].heads & layer.heads
        if heads:
            ours = Span(heads.start - layer.heads.start, heads.stop - layer.heads.start)
            start = producer.layers[remote].heads.start
            theirs = Span(heads.start - start, heads.stop - start)
            groups.setdefault((needs[local], theirs, ours), []).append((remote, local))
    return tuple(
        WantedPart(
            Want(tuple(remote for remote, _ in members), tokens, theirs),
            tuple(local for _, local in members),
            ours,
        )
        for (tokens, theirs, ours), members in groups.items()
    )
