"""Prompts with tokens: one text's prefix is another prompt with the same tokens and the same KV."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tests.unit.runtime.prompts import Prompt

VOCABULARY = 128


@dataclass(frozen=True)
class Text(Prompt):
    """A prompt of a known KV; `whole` is the length of the text that it is the beginning of, 0 for itself."""

    whole: int = 0

    @cached_property
    def truth(self) -> NDArray[np.uint16]:
        if not self.whole:
            return super().truth
        return Prompt(self.whole, self.transfer_id).truth[:, :, :, : self.num_tokens]

    @property
    def token_ids(self) -> list[int]:
        """Token ids, equal wherever the text is."""
        seed = int(self.transfer_id[1:])
        rng = np.random.default_rng(seed)
        return [int(token) for token in rng.integers(0, VOCABULARY, self.whole or self.num_tokens)[: self.num_tokens]]

    def first(self, num_tokens: int) -> Text:
        """The prompt of the first tokens."""
        return Text(num_tokens, self.transfer_id, whole=self.whole or self.num_tokens)
