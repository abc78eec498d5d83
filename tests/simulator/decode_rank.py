"""One process of a decode rank: the real session, its hands, its receive ring, and the KV it was promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.session.consumer import ConsumerSession
from pdkv_connector.session.messages import Facts, RingSpec
from pdkv_connector.types import Span, SpanSet
from tests.simulator.scenario import TIMING
from tests.simulator.violation import require
from tests.simulator.wire import Payload

if TYPE_CHECKING:
    from tests.simulator.prefill_rank import PrefillRank
    from tests.simulator.world import World

Holder = tuple[str, str, int]


@dataclass
class Sought:
    """KV that the engine waits for: per layer the tokens, and per (layer, head) what came."""

    needs: tuple[Span, ...]
    right_prompt: bool
    came: dict[tuple[str, int], SpanSet] = field(default_factory=dict)
    outcome: str = ""
    ended_at: float = 0.0


class DecodeRank:
    """Carries out the consumer's actions; `number` is its tensor-parallel rank."""

    def __init__(self, world: World, number: int, facts: Facts) -> None:
        self.world = world
        self.number = number
        self.facts = facts
        self.instance = world.new_instance("D")
        self.peer_id = f"D{number}" if world.scenario.stable_peer_ids else self.instance
        self.dead = False
        num_slots = world.scenario.num_ring_slots
        ring = RingSpec(0, world.scenario.slot_bytes, num_slots, 0, "DRAM")
        metadata = self.instance.encode()
        timing = replace(TIMING, stall_timeout_s=world.scenario.stall_timeout_s)
        self.session = ConsumerSession("D", facts, "sim", metadata, ring, world.scenario.window_slots, timing)
        self.sought: dict[str, Sought] = {}
        self._slots: list[tuple[act.SlabKey, Payload] | None] = [None] * num_slots
        self._holders: dict[int, Holder] = {}

    def feed(self, event: ev.ConsumerEvent) -> None:
        """Give the session an event and carry out what it answers; a dead process hears nothing."""
        if not self.dead:
            self.world.note(f"D{self.number} <- {event}")
            self.carry_out(self.session.handle(event, self.world.loop.now))

    def carry_out(self, actions: list[act.Action]) -> None:
        for action in actions:
            self.world.note(f"D{self.number} -> {action}")
            _HANDS[type(action)](self, action)

    def want(self, event: ev.Wanted, right_prompt: bool) -> None:
        """The engine allocates blocks and asks for KV."""
        self.sought[event.transfer_id] = Sought(event.needs, right_prompt)
        self.feed(event)

    # -- the network card ---------------------------------------------------------------------------------------------

    def written(self, source: PrefillRank, write: act.Write, payload: Payload, damaged: bool) -> None:
        """A write lands. The slot must be lent to the leg it belongs to."""
        slot = write.header.credit.slot
        self._check_holder(slot, source, write.header)
        fresh = Payload(payload.transfer_id, payload.layers, payload.heads, payload.tokens, payload.checksum, damaged)
        self._slots[slot] = (write.key, fresh)

    def _check_holder(self, slot: int, source: PrefillRank, header: msg.Slab) -> None:
        writer = (self.world.endpoint(source.number), header.transfer_id, header.epoch)
        where = f"slot {slot} of D{self.number} written for {writer}"
        holder = self._holders.get(slot)
        require(holder == writer, "b", f"{where}, lent to {holder}")
        require(slot not in self.session.book.ring._free, "b", f"{where}, while it is free")

    # -- hands --------------------------------------------------------------------------------------------------------

    def _send(self, action: act.Send) -> None:
        message = action.message
        if isinstance(message, msg.Register | msg.Ack):
            for credit in message.credits:
                self._holders[credit.slot] = (action.peer, message.transfer_id, message.epoch)
        number = self.world.number_of(action.peer)
        self.world.control.send(number, self.number, self.instance, message, self._receiver(number))

    def _receiver(self, number: int) -> Callable[[str, msg.Message], None]:
        def receive(instance: str, message: msg.Message) -> None:
            self.world.producers[number].feed(ev.Heard(self.peer_id, instance, message))

        return receive

    def _scatter(self, action: act.Scatter) -> None:
        self._check_grant(action)
        found = self._slots[action.header.credit.slot]
        good = found is not None and found[1].checksum == action.header.checksum and not found[1].damaged
        if not good:
            damaged = ev.Damaged(action.key, "checksum")
            self.world.loop.after(self.world.work_s(), lambda: self.feed(damaged))
            return
        assert found is not None
        self._check_values(action, found[1])
        self._place(action)
        self.world.loop.after(self.world.work_s(), lambda: self._scattered(action))

    def _check_grant(self, action: act.Scatter) -> None:
        sought = self.sought[action.header.transfer_id]
        where = f"{action.key} on D{self.number}"
        require(not sought.outcome, "a", f"{where} is scattered after {sought.outcome}")
        require(sought.right_prompt, "a", f"{where} is scattered although the prompts differ")
        for layer in action.layers:
            require(sought.needs[layer].covers(action.header.tokens), "a", f"{where} is outside what was wanted")

    def _check_values(self, action: act.Scatter, payload: Payload) -> None:
        facts = [self.facts.layers[layer] for layer in action.layers]
        first, header = facts[0].heads.start, action.header
        heads = (first + action.heads.start, first + action.heads.stop)
        tokens = (header.tokens.start, header.tokens.stop)
        want = (header.transfer_id, tuple(fact.name for fact in facts), heads, tokens)
        got = (payload.transfer_id, payload.layers, payload.heads, payload.tokens)
        require(want == got, "a", f"{action.key} on D{self.number} scatters {got} where {want} belongs")

    def _place(self, action: act.Scatter) -> None:
        came = self.sought[action.header.transfer_id].came
        for layer in action.layers:
            fact = self.facts.layers[layer]
            for head in action.heads:
                spans = came.setdefault((fact.name, fact.heads.start + head), SpanSet())
                again = spans.overlaps(action.header.tokens)
                require(not again, "a", f"{action.key} on D{self.number} scatters tokens twice")
                spans.add(action.header.tokens)

    def _scattered(self, action: act.Scatter) -> None:
        if not self.dead:
            outcome = self.sought[action.header.transfer_id].outcome
            require(not outcome, "a", f"{action.key} on D{self.number} is still being scattered after {outcome}")
            self.world.progress_at = self.world.loop.now
            self.feed(ev.Scattered(action.key))

    def _digest(self, action: act.Digest) -> None:
        self.feed(ev.Digested(action.key, ("d",)))

    def _verified(self, action: act.Verified) -> None:
        equal = action.local == action.remote
        require(equal, "e", f"{action.transfer_id} on D{self.number}: digests {action.local}, {action.remote}")

    def _deliver(self, action: act.Deliver) -> None:
        sought = self._end(action.transfer_id, "Deliver")
        where = f"Deliver of {action.transfer_id} on D{self.number}"
        for layer, need in enumerate(sought.needs):
            fact = self.facts.layers[layer]
            for head in fact.heads:
                came = sought.came.get((fact.name, head), SpanSet())
                require(came.covers(need), "e", f"{where}: {fact.name} head {head} lacks some of {need}")

    def _fail(self, action: act.Fail) -> None:
        self._end(action.transfer_id, f"Fail: {action.reason}")

    def _end(self, transfer_id: str, outcome: str) -> Sought:
        sought = self.sought[transfer_id]
        require(not sought.outcome, "d", f"{transfer_id} on D{self.number} ends twice: {sought.outcome}, {outcome}")
        sought.outcome, sought.ended_at = outcome, self.world.loop.now
        return sought


_HANDS: dict[type, Callable[[DecodeRank, Any], None]] = {
    act.Send: DecodeRank._send,
    act.Scatter: DecodeRank._scatter,
    act.Digest: DecodeRank._digest,
    act.Verified: DecodeRank._verified,
    act.Deliver: DecodeRank._deliver,
    act.Fail: DecodeRank._fail,
}
