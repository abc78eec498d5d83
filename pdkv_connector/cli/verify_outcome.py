"""What one prompt of `pdkv verify` showed, and what that means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """One prompt, with and without a transfer; `loaded_tokens` is how many the decode engine took from outside."""

    prompt_tokens: int
    transferred: list[int]
    local: list[int]
    prefill_digests: list[str]
    decode_digests: list[str]
    loaded_tokens: int | None

    @property
    def moved(self) -> bool | None:
        """Whether KV came from the prefill server; None when neither digests nor metrics tell."""
        if self.decode_digests:
            return True
        return None if self.loaded_tokens is None else self.loaded_tokens > 0

    @property
    def kv_equal(self) -> bool | None:
        """Whether every layer's KV is the same bytes on both; None when an engine gave no digests."""
        if not self.prefill_digests or not self.decode_digests:
            return None
        return self.prefill_digests == self.decode_digests

    @property
    def tokens_equal(self) -> bool:
        return self.transferred == self.local

    @property
    def fault(self) -> str:
        """What is wrong, in one line; empty when nothing is."""
        if self.moved is False:
            return "the decode server prefilled it itself, no KV moved: is it started with PDKVConnector as a consumer?"
        if self.moved is None:
            return "cannot tell whether KV moved: the decode server gives neither digests nor /metrics"
        if self.kv_equal is False:
            return f"KV differs: {_first_difference('layer', self.decode_digests, self.prefill_digests)}"
        if not self.tokens_equal and not self.kv_equal:
            return f"tokens differ: {_first_difference('token', self.transferred, self.local)}"
        return ""

    @property
    def remark(self) -> str:
        """What is worth knowing although it is no fault."""
        if self.fault:
            return ""
        if self.kv_equal and not self.tokens_equal:
            return "tokens differ over equal KV: usual below float32, where a batch's shape changes rounding"
        return "" if self.kv_equal is not None else "engines gave no digests: only tokens were compared"


def _first_difference(noun: str, got: Sequence[object], expected: Sequence[object]) -> str:
    for position, pair in enumerate(zip(got, expected, strict=False)):
        if pair[0] != pair[1]:
            return f"{noun} {position} is {pair[0]} where {pair[1]} was expected"
    return f"{len(got)} {noun}s where {len(expected)} were expected"
