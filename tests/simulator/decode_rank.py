"""One process of a decode rank: the real session, its hands and its receive ring."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.session.consumer import ConsumerSession
from pdkv_connector.session.messages import Facts, RingSpec
from tests.simulator.pool import Blocks
from tests.simulator.process import Process
from tests.simulator.promised import Promised
from tests.simulator.scenario import EnginePlan
from tests.simulator.violation import Violation, require
from tests.simulator.wire import Payload

if TYPE_CHECKING:
    from tests.simulator.decode_engine import DecodeEngine
    from tests.simulator.prefill_rank import PrefillRank
    from tests.simulator.world import World

Holder = tuple[str, str, int]


class DecodeRank(Process):
    """Carries out the consumer's actions."""

    def __init__(self, world: World, engine: DecodeEngine, name: str, facts: Facts, plan: EnginePlan) -> None:
        super().__init__(world, name, plan.clock, plan.work_factor)
        scenario = world.scenario
        if not scenario.stable_peer_ids:
            self.peer_id = self.instance
        self._engine = engine
        ring = RingSpec(0, scenario.slot_bytes, scenario.num_ring_slots, 0, "DRAM")
        self.session = ConsumerSession(
            engine.engine_id,
            facts,
            "sim",
            self.instance.encode(),
            ring,
            scenario.window_slots,
            scenario.consumer_timing,
        )
        self.promised = Promised(name, facts)
        self._slots: dict[int, Payload] = {}
        self._holders: dict[int, Holder] = {}

    def want(self, event: ev.Wanted, blocks: Blocks, right_prompt: bool) -> None:
        """The engine allocated blocks and asks for KV."""
        self.promised.seek(event, blocks, right_prompt, self.world.loop.now)
        self.feed(event)

    # -- the network card ---------------------------------------------------------------------------------------------

    def written(self, source: PrefillRank, write: act.Write, payload: Payload, damaged: bool, *, stray: bool) -> None:
        """A write lands. The slot must be lent to the leg it belongs to, unless nobody could call the write back."""
        header = write.header
        slot = header.credit.slot
        writer = (source.name, header.transfer_id, header.epoch)
        holder = None if slot in self.session.book.ring._free else self._holders.get(slot)
        if holder != writer and not stray:
            raise Violation("b", f"slot {slot} of {self.name} written for {writer}, lent to {holder}")
        self._slots[slot] = replace(payload, damaged=damaged)

    # -- hands --------------------------------------------------------------------------------------------------------

    def _send(self, action: act.Send) -> None:
        message = action.message
        self.world.checks.said(self, message)
        if isinstance(message, msg.Register | msg.Ack):
            for credit in message.credits:
                self._holders[credit.slot] = (action.peer, message.transfer_id, message.epoch)
        self.world.control.send(self, action.peer, message)

    def _scatter(self, action: act.Scatter) -> None:
        self.promised.check_grant(action)
        payload = self._slots.get(action.header.credit.slot)
        if payload is None or payload.damaged or payload.checksum != action.header.checksum:
            self.works(partial(self.feed, ev.Damaged(action.key, "checksum")))
            return
        self.promised.place(action, payload)
        self.works(partial(self._scattered, action))

    def _scattered(self, action: act.Scatter) -> None:
        self.promised.check_placed(action)
        self.world.progress()
        self.feed(ev.Scattered(action.key))

    def _digest(self, action: act.Digest) -> None:
        self.feed(ev.Digested(action.key, ("d",)))

    def _verified(self, action: act.Verified) -> None:
        equal = action.local == action.remote
        require(equal, "e", f"{action.transfer_id} on {self.name}: digests {action.local}, {action.remote}")

    def _deliver(self, action: act.Deliver) -> None:
        self.promised.end(action.transfer_id, "Deliver", self.world.loop.now)
        self.promised.check_whole(action.transfer_id)
        self._engine.ended(self, action.transfer_id)

    def _fail(self, action: act.Fail) -> None:
        self.promised.end(action.transfer_id, f"Fail: {action.reason}", self.world.loop.now)
        self._engine.ended(self, action.transfer_id)


DecodeRank.hands = {
    act.Send: DecodeRank._send,
    act.Forget: lambda _rank, _action: None,
    act.Scatter: DecodeRank._scatter,
    act.Digest: DecodeRank._digest,
    act.Verified: DecodeRank._verified,
    act.Deliver: DecodeRank._deliver,
    act.Fail: DecodeRank._fail,
}
