"""KV blocks of one prefill rank: who holds them, what is computed in them, who reads them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdkv_connector.session import actions as act
from pdkv_connector.session.messages import Facts
from pdkv_connector.types import Span, SpanSet
from tests.simulator.pool import BlockMemory, Blocks
from tests.simulator.violation import Violation, require
from tests.simulator.wire import Payload


@dataclass
class Held:
    """The blocks of one request on this rank: what is computed, who reads, and how it ended."""

    blocks: Blocks = ()
    computed: SpanSet = field(default_factory=SpanSet)
    reading: dict[act.SlabKey, act.Gather] = field(default_factory=dict)
    ended_at: float | None = None
    released: bool = False

    @property
    def allocated(self) -> bool:
        """True while the engine has blocks for it."""
        return bool(self.blocks)


class PrefillBlocks:
    """Blocks are a request's own from its first forward pass to its preemption or Release; `name` is the rank's."""

    def __init__(self, name: str, facts: Facts) -> None:
        self._name = name
        self._facts = facts
        self._memory = BlockMemory()
        self.held: dict[str, Held] = {}

    def fills(self, send_slot: int) -> bool:
        """True while a gather fills this send slot."""
        return any(gather.send_slot == send_slot for held in self.held.values() for gather in held.reading.values())

    def compute(self, transfer_id: str, blocks: Blocks, tokens: Span) -> None:
        """A forward pass writes KV."""
        held = self.held[transfer_id]
        if not held.blocks:
            held.blocks = blocks
            self._memory.take(transfer_id, blocks)
        held.computed.add(tokens)

    def check_read(self, gather: act.Gather) -> None:
        """What is read must be computed, and not yet anybody else's."""
        transfer_id = gather.key.leg.transfer_id
        held = self.held[transfer_id]
        readable = held.computed.covers(gather.tokens) and self._memory.owns(transfer_id, held.blocks, gather.tokens)
        if not readable:
            raise Violation("c", f"{gather.key} reads {gather.tokens} on {self._name}: not this request's blocks")

    def check_digest(self, digest: act.Digest) -> None:
        """Nothing wanted, nothing read: such a request may be unknown here."""
        held = self.held.get(digest.key.transfer_id)
        readable = not digest.parts or (held is not None and not held.released)
        if not readable:
            raise Violation("c", f"{digest.key} digests blocks on {self._name} that are not this request's")

    def payload(self, gather: act.Gather, checksum: int) -> Payload:
        """What a gather puts into its send slot, in global names."""
        facts = [self._facts.layers[layer] for layer in gather.layers]
        first = facts[0].heads.start
        heads = (first + gather.heads.start, first + gather.heads.stop)
        names = tuple(fact.name for fact in facts)
        return Payload(gather.key.leg.transfer_id, names, heads, (gather.tokens.start, gather.tokens.stop), checksum)

    def preempt(self, transfer_id: str) -> None:
        """The blocks are somebody else's now."""
        held = self.held[transfer_id]
        require(not held.reading, "c", f"{transfer_id}: a gather started on {self._name} after Revoked")
        held.computed, held.blocks = SpanSet(), ()

    def release(self, transfer_id: str) -> float:
        """The engine frees the blocks; when it finished the request, in seconds."""
        held = self.held[transfer_id]
        where = f"{transfer_id} on {self._name}"
        require(held.ended_at is not None, "d", f"Release of {where}, which the engine still runs")
        require(not held.released, "d", f"second Release of {where}")
        require(not held.reading, "c", f"Release of {where} while {list(held.reading)} may read its blocks")
        held.released, held.blocks = True, ()
        return held.ended_at or 0.0
