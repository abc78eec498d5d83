"""One process of a prefill rank: the real session, its hands, and the KV blocks of its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session.messages import Facts
from pdkv_connector.session.producer import ProducerSession
from pdkv_connector.types import Span, SpanSet
from tests.simulator.decode_rank import DecodeRank
from tests.simulator.violation import require
from tests.simulator.wire import Payload

if TYPE_CHECKING:
    from tests.simulator.world import World


@dataclass
class Held:
    """The blocks of one request on this rank: what is computed, who reads, and how it ended."""

    computed: SpanSet = field(default_factory=SpanSet)
    reading: dict[act.SlabKey, act.Gather] = field(default_factory=dict)
    allocated: bool = False
    ended_at: float | None = None
    released: bool = False


class PrefillRank:
    """Carries out the producer's actions; `number` is the rank's place among the endpoints."""

    def __init__(self, world: World, number: int, facts: Facts, engine_id: str) -> None:
        self.world = world
        self.number = number
        self.facts = facts
        self.instance = world.new_instance("P")
        self.dead = False
        scenario = world.scenario
        self.session = ProducerSession(
            engine_id, facts, "sim", b"", scenario.slot_bytes, scenario.num_send_slots, scenario.producer_timing
        )
        self.held: dict[str, Held] = {}
        self._connected: dict[str, DecodeRank] = {}
        self._send_slots: list[tuple[act.SlabKey, Payload | None] | None] = [None] * scenario.num_send_slots

    def feed(self, event: ev.ProducerEvent) -> None:
        """Give the session an event and carry out what it answers; a dead process hears nothing."""
        if not self.dead:
            self.world.note(f"P{self.number} <- {event}")
            self.carry_out(self.session.handle(event, self.world.loop.now))

    def carry_out(self, actions: list[act.Action]) -> None:
        for action in actions:
            self.world.note(f"P{self.number} -> {action}")
            _HANDS[type(action)](self, action)

    # -- the engine's side --------------------------------------------------------------------------------------------

    def preempt(self, transfer_id: str) -> None:
        """Tell the session, let running gathers end, then give the blocks to somebody else."""
        self.feed(ev.Revoked(transfer_id))
        held = self.held[transfer_id]
        for gather in list(held.reading.values()):
            self._gathered(gather)
        require(not held.reading, "c", f"{transfer_id}: a gather started on P{self.number} after Revoked")
        held.computed, held.allocated = SpanSet(), False

    def compute(self, transfer_id: str, tokens: Span) -> None:
        """A forward pass over `tokens`: every layer becomes ready, in pieces."""
        held = self.held[transfer_id]
        held.allocated = True
        held.computed.add(tokens)
        layer = 0
        while layer < len(self.facts.layers):
            stop = self.world.rng.randint(layer + 1, len(self.facts.layers))
            self.feed(ev.Ready(transfer_id, Span(layer, stop), tokens))
            layer = stop

    def finish(self, transfer_id: str) -> None:
        """The engine is done with the request; blocks are kept until Release."""
        self.held[transfer_id].ended_at = self.world.loop.now
        self.feed(ev.Finished(transfer_id))

    def withdraw(self, transfer_id: str) -> None:
        """The request is aborted; without blocks there is nothing to release."""
        held = self.held[transfer_id]
        held.ended_at = self.world.loop.now if held.allocated else None
        self.feed(ev.Withdrawn(transfer_id, "client left", held.allocated))

    # -- hands --------------------------------------------------------------------------------------------------------

    def _send(self, action: act.Send) -> None:
        if rank := self.world.consumer_at(action.peer):
            peer = self.world.endpoint(self.number)
            self.world.control.send(
                self.number,
                rank.number,
                self.instance,
                action.message,
                lambda instance, message: rank.feed(ev.Heard(peer, instance, message)),
            )

    def _connect(self, action: act.Connect) -> None:
        self._connected[action.peer] = self.world.decode_processes[action.metadata.decode()]

    def _forget(self, action: act.Forget) -> None:
        if target := self._connected.pop(action.peer, None):
            self.world.wire.disconnect(self, target)

    def _gather(self, action: act.Gather) -> None:
        where = f"{action.key} on P{self.number}"
        require(not self._in_use(action.send_slot), "send slot", f"{where} gathers into a slot in use")
        self._send_slots[action.send_slot] = (action.key, None)
        self._may_read(action)
        self.held[action.key.leg.transfer_id].reading[action.key] = action
        self.world.loop.after(self.world.work_s(), lambda: self._gathered(action))

    def _in_use(self, send_slot: int) -> bool:
        gathers = (gather.send_slot for held in self.held.values() for gather in held.reading.values())
        return send_slot in gathers or self.world.wire.reads(self, send_slot)

    def _digest(self, action: act.Digest) -> None:
        self._may_digest(action)
        self.world.loop.after(self.world.work_s(), lambda: self._digested(action))

    def _may_digest(self, action: act.Digest) -> None:
        """Nothing wanted, nothing read: such a request may be unknown here."""
        held = self.held.get(action.key.transfer_id)
        readable = not action.parts or (held is not None and not held.released)
        require(readable, "c", f"{action.key} digests blocks on P{self.number} that are not this request's")

    def _digested(self, action: act.Digest) -> None:
        if self.dead:
            return
        self._may_digest(action)
        self.feed(ev.Digested(action.key, ("d",)))

    def _may_read(self, action: act.Gather) -> None:
        held = self.held[action.key.leg.transfer_id]
        readable = held.allocated and held.computed.covers(action.tokens)
        require(readable, "c", f"{action.key} reads {action.tokens} on P{self.number}: not this request's blocks")

    def _gathered(self, action: act.Gather) -> None:
        held = self.held[action.key.leg.transfer_id]
        if self.dead or held.reading.pop(action.key, None) is None:
            return
        self._may_read(action)
        if self.world.rng.random() < self.world.scenario.weather.gather_failure:
            self.feed(ev.GatherFailed(action.key, "no such blocks"))
            return
        facts = [self.facts.layers[layer] for layer in action.layers]
        first = facts[0].heads.start
        heads = (first + action.heads.start, first + action.heads.stop)
        names = tuple(fact.name for fact in facts)
        tokens = (action.tokens.start, action.tokens.stop)
        payload = Payload(action.key.leg.transfer_id, names, heads, tokens, self.world.new_checksum())
        self._send_slots[action.send_slot] = (action.key, payload)
        num_bytes = len(names) * len(action.tokens) * len(action.heads) * 2
        self.feed(ev.Gathered(action.key, num_bytes, payload.checksum))

    def _write(self, action: act.Write) -> None:
        target = self._connected.get(action.key.leg.peer)
        self.read_send_slot(action)
        if target is None:
            self.world.loop.after(0.0, lambda: self.feed(ev.WriteFailed(action.key, "not connected")))
        else:
            self.world.wire.start(self, target, action)

    def read_send_slot(self, action: act.Write) -> Payload:
        """What the network card reads; it must be the slab the write is for."""
        found = self._send_slots[action.send_slot]
        right = found is not None and found[0] == action.key and found[1] is not None
        require(right, "send slot", f"{action.key} of P{self.number} reads a slot that holds {found and found[0]}")
        assert found is not None
        assert found[1] is not None
        return found[1]

    def _release(self, action: act.Release) -> None:
        held = self.held[action.transfer_id]
        where = f"{action.transfer_id} on P{self.number}"
        require(held.ended_at is not None, "d", f"Release of {where}, which the engine still runs")
        require(not held.released, "d", f"second Release of {where}")
        require(not held.reading, "c", f"Release of {where} while {list(held.reading)} may read its blocks")
        self.world.check_release(action.transfer_id, held.ended_at or 0.0)
        held.released, held.allocated = True, False


_HANDS: dict[type, Callable[[PrefillRank, Any], None]] = {
    act.Send: PrefillRank._send,
    act.Connect: PrefillRank._connect,
    act.Forget: PrefillRank._forget,
    act.Digest: PrefillRank._digest,
    act.Gather: PrefillRank._gather,
    act.Write: PrefillRank._write,
    act.Release: PrefillRank._release,
}
