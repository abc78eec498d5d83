"""Prompts whose KV is known: what every token of every layer must hold, wherever it lies."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pdkv_connector.layout.window import needed_tokens
from pdkv_connector.types import Span

NUM_HEADS, HEAD_DIM = 2, 32
WINDOWS = (0, 48)
"""Attention window of each KV cache group."""
GROUP_OF_LAYER = (0, 1, 0, 1)
FULL_ONLY = (0,)
"""The windows of a model of one group, which all layers are in."""
NUM_LAYERS = len(GROUP_OF_LAYER)
TOKEN_BYTES = NUM_LAYERS * 2 * NUM_HEADS * HEAD_DIM * 2
SENTINEL = 0xA5A5
"""What untouched memory holds; no KV does."""

_numbers = itertools.count()


@dataclass(frozen=True)
class Prompt:
    """One request and its KV, `truth[layer][plane][head][token][dim]`."""

    num_tokens: int
    transfer_id: str = field(default_factory=lambda: f"t{next(_numbers)}")

    @property
    def digest(self) -> str:
        return f"prompt of {self.transfer_id}"

    @cached_property
    def truth(self) -> NDArray[np.uint16]:
        seed = int(self.transfer_id[1:])
        shape = (NUM_LAYERS, 2, NUM_HEADS, self.num_tokens, HEAD_DIM)
        return np.random.default_rng(seed).integers(0, SENTINEL, shape, np.uint16)

    def kv(self, layer: int, tokens: Span) -> NDArray[np.uint16]:
        """Its KV in wire order."""
        return np.ascontiguousarray(self.truth[layer, :, :, tokens.start : tokens.stop])

    def needs(self, num_local_hit: int = 0) -> tuple[Span, ...]:
        """Tokens a decode engine asks for, by layer."""
        return tuple(needed_tokens(self.num_tokens - 1, num_local_hit, WINDOWS[group]) for group in GROUP_OF_LAYER)
