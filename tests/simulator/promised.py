"""KV that a decode rank was promised: what came, of whose request, and whether it came once."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session.messages import Facts
from pdkv_connector.types import Span, SpanSet
from tests.simulator.pool import BlockMemory, Blocks
from tests.simulator.scenario import BLOCK_TOKENS
from tests.simulator.violation import Violation, require
from tests.simulator.wire import Payload


@dataclass
class Sought:
    """KV that the engine waits for: per layer the tokens, and per (layer, head) what came."""

    needs: tuple[Span, ...]
    blocks: Blocks
    right_prompt: bool
    asked_at: float
    came: dict[tuple[str, int], SpanSet] = field(default_factory=dict)
    outcome: str = ""
    ended_at: float = 0.0


class Promised:
    """Checks every scatter and every ending of one rank, whose name is `name`."""

    def __init__(self, name: str, facts: Facts) -> None:
        self._name = name
        self._facts = facts
        self._memory = BlockMemory()
        self.sought: dict[str, Sought] = {}

    def seek(self, event: ev.Wanted, blocks: Blocks, right_prompt: bool, now: float) -> None:
        """The engine gave these blocks to the request."""
        self.sought[event.transfer_id] = Sought(event.needs, blocks, right_prompt, now)
        self._memory.take(event.transfer_id, blocks)

    def check_grant(self, action: act.Scatter) -> None:
        """A slab may be scattered only while the engine waits for it, and only where it does."""
        sought = self.sought[action.header.transfer_id]
        fault = f"after {sought.outcome}" if sought.outcome else ""
        if not sought.right_prompt:
            fault = "although the prompts differ"
        if not all(sought.needs[layer].covers(action.header.tokens) for layer in action.layers):
            fault = "outside what was wanted"
        if fault:
            raise Violation("a", f"{action.key} on {self._name} is scattered {fault}")
        self._check_own(action)

    def _check_own(self, action: act.Scatter) -> None:
        """The blocks must not be another request's by now."""
        transfer_id, tokens = action.header.transfer_id, action.header.tokens
        own = self._memory.owns(transfer_id, self.sought[transfer_id].blocks, tokens)
        if not own:
            raise Violation("a", f"{action.key} on {self._name} is scattered into blocks of another request")

    def place(self, action: act.Scatter, payload: Payload) -> None:
        """Scatter: the values must be the right ones, and none may have come before."""
        self._check_values(action, payload)
        came = self.sought[action.header.transfer_id].came
        for layer in action.layers:
            fact = self._facts.layers[layer]
            for head in action.heads:
                spans = came.setdefault((fact.name, fact.heads.start + head), SpanSet())
                again = spans.overlaps(action.header.tokens)
                if again:
                    raise Violation("a", f"{action.key} on {self._name} scatters tokens twice")
                spans.add(action.header.tokens)

    def _check_values(self, action: act.Scatter, payload: Payload) -> None:
        facts = [self._facts.layers[layer] for layer in action.layers]
        first, header = facts[0].heads.start, action.header
        heads = (first + action.heads.start, first + action.heads.stop)
        tokens = (header.tokens.start, header.tokens.stop)
        want = (header.transfer_id, tuple(fact.name for fact in facts), heads, tokens)
        got = (payload.transfer_id, payload.layers, payload.heads, payload.tokens)
        if not (want == got):
            raise Violation("a", f"{action.key} on {self._name} scatters {got} where {want} belongs")

    def check_placed(self, action: act.Scatter) -> None:
        """The scatter ran until now: the engine must not have been told of an end meanwhile."""
        outcome = self.sought[action.header.transfer_id].outcome
        if outcome:
            raise Violation("a", f"{action.key} on {self._name} is still being scattered after {outcome}")
        self._check_own(action)

    def end(self, transfer_id: str, outcome: str, now: float) -> None:
        """The engine hears of the end, once."""
        sought = self.sought[transfer_id]
        ends = f"{sought.outcome}, {outcome}"
        require(not sought.outcome, "d", f"{transfer_id} on {self._name} ends twice: {ends}")
        sought.outcome, sought.ended_at = outcome, now

    def check_whole(self, transfer_id: str) -> None:
        """Every wanted token of every layer and head is in place."""
        sought = self.sought[transfer_id]
        for fact, need in zip(self._facts.layers, sought.needs, strict=True):
            for head in fact.heads:
                came = sought.came.get((fact.name, head), SpanSet())
                where = f"Deliver of {transfer_id} on {self._name}"
                require(came.covers(need), "e", f"{where}: {fact.name} head {head} lacks some of {need}")

    def check_kept(self, transfer_id: str) -> None:
        """Until the engine frees them, the blocks held this request's KV."""
        sought = self.sought[transfer_id]
        own = self._memory.owns(transfer_id, sought.blocks, Span(0, BLOCK_TOKENS * len(sought.blocks)))
        require(own, "a", f"blocks of {transfer_id} on {self._name} were overwritten before it ended")
