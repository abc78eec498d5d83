"""Cutting the KV of a request into slabs that fit one ring slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pdkv_connector.errors import LayoutError
from pdkv_connector.types import Span


def plan_slabs(
    bytes_per_token_of_layer: Sequence[int], layers: Span, tokens: Span, slot_bytes: int
) -> list[tuple[Span, Span]]:
    """Cover `layers` x `tokens` with slabs `(layers, tokens)`, each at most `slot_bytes` in raw form, in layer order.

    Consecutive layers share a slab while they fit whole; a layer too large for one slot is cut into token ranges of
    nearly equal size. Raises LayoutError when one token of one layer exceeds a slot.
    """
    if not tokens:
        return []
    slabs = []
    for group in _groups(bytes_per_token_of_layer, layers, slot_bytes // len(tokens)):
        token_bytes = sum(bytes_per_token_of_layer[layer] for layer in group)
        slabs += [(group, part) for part in _cut(tokens, group, token_bytes, slot_bytes)]
    return slabs


def _groups(token_bytes: Sequence[int], layers: Span, budget_bytes: int) -> Iterator[Span]:
    """Longest runs of layers whose bytes per token stay within the budget; a layer beyond it stands alone."""
    start, used = layers.start, 0
    for layer in layers:
        if used and used + token_bytes[layer] > budget_bytes:
            yield Span(start, layer)
            start, used = layer, 0
        used += token_bytes[layer]
    if layers:
        yield Span(start, layers.stop)


def _cut(tokens: Span, layers: Span, token_bytes: int, slot_bytes: int) -> Iterator[Span]:
    if token_bytes == 0:
        raise LayoutError(f"layers [{layers.start}, {layers.stop}) hold 0 bytes per token; leave them out of the slab")
    if token_bytes > slot_bytes:
        raise LayoutError(
            f"one token of layer {layers.start} takes {token_bytes} bytes, a slot holds {slot_bytes}; "
            f"raise slot_bytes to {token_bytes} or more"
        )
    num_parts = -(-len(tokens) // (slot_bytes // token_bytes))
    bounds = [tokens.start + len(tokens) * part // num_parts for part in range(num_parts + 1)]
    yield from (Span(start, stop) for start, stop in pairwise(bounds))
