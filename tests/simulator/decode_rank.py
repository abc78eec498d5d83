"""One process of a decode rank: the real session, its hands and its receive ring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.session.consumer import ConsumerSession
from pdkv_connector.session.messages import Facts, RingSpec
from tests.simulator.promised import Promised, Sought
from tests.simulator.scenario import TIMING
from tests.simulator.violation import require
from tests.simulator.wire import Payload

if TYPE_CHECKING:
    from tests.simulator.prefill_rank import PrefillRank
    from tests.simulator.world import World

Holder = tuple[str, str, int]


class DecodeRank:
    """Carries out the consumer's actions; `number` is its tensor-parallel rank."""

    def __init__(self, world: World, number: int, facts: Facts) -> None:
        self.world = world
        self.number = number
        self.instance = world.new_instance("D")
        self.peer_id = f"D{number}" if world.scenario.stable_peer_ids else self.instance
        self.dead = False
        scenario = world.scenario
        ring = RingSpec(0, scenario.slot_bytes, scenario.num_ring_slots, 0, "DRAM")
        timing = replace(TIMING, stall_timeout_s=scenario.stall_timeout_s)
        self.session = ConsumerSession("D", facts, "sim", self.instance.encode(), ring, scenario.window_slots, timing)
        self.promised = Promised(f"D{number}", facts)
        self._slots: dict[int, Payload] = {}
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
        self.promised.sought[event.transfer_id] = Sought(event.needs, right_prompt)
        self.feed(event)

    # -- the network card ---------------------------------------------------------------------------------------------

    def written(self, source: PrefillRank, write: act.Write, payload: Payload, damaged: bool) -> None:
        """A write lands. The slot must be lent to the leg it belongs to."""
        header = write.header
        slot = header.credit.slot
        writer = (self.world.endpoint(source.number), header.transfer_id, header.epoch)
        where = f"slot {slot} of D{self.number} written for {writer}"
        holder = self._holders.get(slot)
        require(holder == writer, "b", f"{where}, lent to {holder}")
        require(slot not in self.session.book.ring._free, "b", f"{where}, while it is free")
        self._slots[slot] = replace(payload, damaged=damaged)

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
        self.promised.check_grant(action)
        payload = self._slots.get(action.header.credit.slot)
        if payload is None or payload.damaged or payload.checksum != action.header.checksum:
            self.world.loop.after(self.world.work_s(), lambda: self.feed(ev.Damaged(action.key, "checksum")))
            return
        self.promised.place(action, payload)
        self.world.loop.after(self.world.work_s(), lambda: self._scattered(action))

    def _scattered(self, action: act.Scatter) -> None:
        if not self.dead:
            self.promised.check_placed(action)
            self.world.progress_at = self.world.loop.now
            self.feed(ev.Scattered(action.key))

    def _digest(self, action: act.Digest) -> None:
        self.feed(ev.Digested(action.key, ("d",)))

    def _verified(self, action: act.Verified) -> None:
        equal = action.local == action.remote
        require(equal, "e", f"{action.transfer_id} on D{self.number}: digests {action.local}, {action.remote}")

    def _deliver(self, action: act.Deliver) -> None:
        self.promised.end(action.transfer_id, "Deliver", self.world.loop.now)
        self.promised.check_whole(action.transfer_id)

    def _fail(self, action: act.Fail) -> None:
        self.promised.end(action.transfer_id, f"Fail: {action.reason}", self.world.loop.now)


_HANDS: dict[type, Callable[[DecodeRank, Any], None]] = {
    act.Send: DecodeRank._send,
    act.Forget: lambda _rank, _action: None,
    act.Scatter: DecodeRank._scatter,
    act.Digest: DecodeRank._digest,
    act.Verified: DecodeRank._verified,
    act.Deliver: DecodeRank._deliver,
    act.Fail: DecodeRank._fail,
}
