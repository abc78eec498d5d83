"""What the two engines' workers do with their runtimes, request by request."""

from __future__ import annotations

import numpy as np

from pdkv_connector.session import events as ev
from pdkv_connector.types import Span
from tests.unit.runtime.prompts import NUM_LAYERS, SENTINEL, Prompt
from tests.unit.runtime.rank import Blocks, Rank, chunks

CHUNK_TOKENS = 64


class Prefill:
    """The producing engine: allocates, computes layer by layer, finishes."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.blocks: dict[str, Blocks] = {}

    @property
    def endpoint(self) -> str:
        return self.rank.runtime.endpoint

    def offer(self, prompt: Prompt) -> None:
        self.rank.runtime.post([ev.Offered(prompt.transfer_id, prompt.num_tokens, prompt.digest)])

    def grow(self, prompt: Prompt, num_tokens: int) -> Blocks:
        """Blocks for the first `num_tokens`; returns all the request holds."""
        held = self.blocks.setdefault(prompt.transfer_id, ([], []))
        new = self.rank.allocate(num_tokens, len(held[0]))
        for mine, more in zip(held, new, strict=True):
            mine += more
        self.rank.runtime.tables.extend(prompt.transfer_id, new)
        return held

    def compute(self, prompt: Prompt, tokens: Span) -> None:
        """One step: every layer's KV of `tokens`, announced as it is there."""
        blocks = self.grow(prompt, tokens.stop)
        for layer in range(NUM_LAYERS):
            self.rank.fill(layer, blocks, prompt, tokens)
            self.rank.runtime.post([ev.Ready(prompt.transfer_id, Span(layer, layer + 1), tokens)])

    def find_cached(self, prompt: Prompt, tokens: Span) -> None:
        """KV of an earlier request: announced for all layers at once."""
        blocks = self.grow(prompt, tokens.stop)
        for layer in range(NUM_LAYERS):
            self.rank.fill(layer, blocks, prompt, tokens)
        self.rank.runtime.post([ev.Ready(prompt.transfer_id, Span(0, NUM_LAYERS), tokens)])

    def finish(self, prompt: Prompt) -> None:
        self.rank.runtime.post([ev.Finished(prompt.transfer_id)])

    def run(self, prompt: Prompt, chunk_tokens: int = CHUNK_TOKENS) -> None:
        """The whole request."""
        self.offer(prompt)
        for tokens in chunks(prompt.num_tokens, chunk_tokens):
            self.compute(prompt, tokens)
        self.finish(prompt)

    def withdraw(self, prompt: Prompt, reason: str) -> None:
        self.rank.runtime.post([ev.Withdrawn(prompt.transfer_id, reason, True)])

    def preempt(self, prompt: Prompt, told: bool = True) -> None:
        """Take the blocks back and use them for something else at once."""
        if told:
            self.rank.runtime.revoke([prompt.transfer_id])
        self.rank.overwrite(self.blocks.pop(prompt.transfer_id))


class Decode:
    """The consuming engine; what it holds is compared with what it asked for."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.wanted: dict[str, tuple[Prompt, Blocks, tuple[Span, ...]]] = {}

    def want(self, prompt: Prompt, producer: Prefill, hit: int = 0, digest: bool = False, **differing: object) -> None:
        """Ask for all of a prompt but a local hit of `hit` tokens."""
        needs, blocks = prompt.needs(hit), self.rank.allocate(prompt.num_tokens)
        self.wanted[prompt.transfer_id] = (prompt, blocks, needs)
        self.rank.runtime.tables.extend(prompt.transfer_id, blocks)
        wanted = {
            "transfer_id": prompt.transfer_id, "engine_id": "", "endpoints": (producer.endpoint,), "tp_size": 1,
            "num_prompt_tokens": prompt.num_tokens, "prompt_digest": prompt.digest, "needs": needs, "digest": digest,
        }  # fmt: skip
        self.rank.runtime.post([ev.Wanted(**{**wanted, **differing})])  # type: ignore[arg-type]

    def unwant(self, prompt: Prompt, reason: str) -> None:
        self.rank.runtime.post([ev.Unwanted(prompt.transfer_id, reason)])

    def faults(self) -> list[str]:
        """Where the memory differs from what was asked for: wanted tokens as prefilled, all else untouched."""
        found = []
        for prompt, blocks, needs in self.wanted.values():
            for layer, tokens in enumerate(needs):
                wrong = self.rank.elements(layer, blocks, tokens) != prompt.kv(layer, tokens)
                found += [f"{prompt.transfer_id} layer {layer}: {wrong.sum()} elements differ"] if wrong.any() else []
        for layer in range(NUM_LAYERS):
            num_wanted = sum(prompt.kv(layer, needs[layer]).size for prompt, _, needs in self.wanted.values())
            if (num_changed := self.rank.num_changed(layer)) != num_wanted:
                found.append(f"layer {layer}: {num_changed} elements changed, {num_wanted} were asked for")
        return found

    def wrong_elements(self) -> int:
        """Elements that changed and are not what was asked for there: of a failed transfer, some may be missing."""
        num_right = num_changed = 0
        for layer in range(NUM_LAYERS):
            num_changed += self.rank.num_changed(layer)
            for prompt, blocks, needs in self.wanted.values():
                held, truth = self.rank.elements(layer, blocks, needs[layer]), prompt.kv(layer, needs[layer])
                num_right += int(((held != SENTINEL) & (held == truth)).sum())
        return num_changed - num_right

    def snapshot(self) -> bytes:
        """All KV memory."""
        return b"".join(np.ascontiguousarray(tensor).tobytes() for tensor in self.rank.memory.tensors)
