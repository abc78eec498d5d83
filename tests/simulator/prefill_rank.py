"""One process of a prefill rank: the real session and its hands."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session.messages import Facts
from pdkv_connector.session.producer import ProducerSession
from pdkv_connector.types import Span
from tests.simulator.codecs import Whims, encoded_bytes
from tests.simulator.decode_rank import DecodeRank
from tests.simulator.pool import Blocks
from tests.simulator.prefill_blocks import PrefillBlocks
from tests.simulator.process import Process
from tests.simulator.scenario import EnginePlan
from tests.simulator.violation import Violation
from tests.simulator.wire import Payload

if TYPE_CHECKING:
    from tests.simulator.prefill_engine import PrefillEngine
    from tests.simulator.world import World


class PrefillRank(Process):
    """Carries out the producer's actions."""

    def __init__(self, world: World, engine: PrefillEngine, name: str, facts: Facts, plan: EnginePlan) -> None:
        super().__init__(world, name, plan.clock, plan.work_factor)
        self.facts = facts
        self._engine = engine
        scenario = world.scenario
        self.session = ProducerSession(
            engine.engine_id, facts, "sim", b"", scenario.slot_bytes, scenario.num_send_slots,
            scenario.producer_timing, Whims(world.rng, scenario.codec_whims),
        )  # fmt: skip
        self.blocks = PrefillBlocks(name, facts)
        self._connected: dict[str, DecodeRank] = {}
        self._send_slots: dict[int, tuple[act.SlabKey, Payload | None]] = {}

    # -- the engine's side --------------------------------------------------------------------------------------------

    def preempt(self, transfer_id: str) -> None:
        """Tell the session, let running gathers end, then give the blocks to somebody else."""
        self.feed(ev.Revoked(transfer_id))
        for gather in list(self.blocks.held[transfer_id].reading.values()):
            self._gathered(gather)
        self.blocks.preempt(transfer_id)

    def compute(self, transfer_id: str, blocks: Blocks, tokens: Span) -> None:
        """A forward pass over `tokens`: every layer becomes ready, in pieces."""
        self.blocks.compute(transfer_id, blocks, tokens)
        layer = 0
        while layer < len(self.facts.layers):
            stop = self.world.rng.randint(layer + 1, len(self.facts.layers))
            self.feed(ev.Ready(transfer_id, Span(layer, stop), tokens))
            layer = stop

    # -- hands --------------------------------------------------------------------------------------------------------

    def _send(self, action: act.Send) -> None:
        self.world.checks.said(self, action.message)
        self.world.control.send(self, action.peer, action.message)

    def _connect(self, action: act.Connect) -> None:
        self._connected[action.peer] = self.world.decode_processes[action.metadata.decode()]

    def _forget(self, action: act.Forget) -> None:
        if target := self._connected.pop(action.peer, None):
            self.world.wire.disconnect(self, target)

    def _gather(self, action: act.Gather) -> None:
        in_use = self.blocks.fills(action.send_slot) or self.world.wire.reads(self, action.send_slot)
        if in_use:
            raise Violation("send slot", f"{action.key} on {self.name} gathers into a slot in use")
        self._send_slots[action.send_slot] = (action.key, None)
        self.blocks.check_read(action)
        self.blocks.held[action.key.leg.transfer_id].reading[action.key] = action
        self.works(partial(self._gathered, action))

    def _gathered(self, action: act.Gather) -> None:
        held = self.blocks.held[action.key.leg.transfer_id]
        if held.reading.get(action.key) is not action:  # done early, for a preemption; the number may be another's now
            return
        del held.reading[action.key]
        self.blocks.check_read(action)
        if self.world.rng.random() < self.world.scenario.weather.gather_failure:
            self.feed(ev.GatherFailed(action.key, "no such blocks"))
            return
        num_bytes = encoded_bytes(self.world.rng, action)
        if num_bytes > action.max_bytes:
            self.feed(ev.GatherTooLarge(action.key))
            return
        payload = self.blocks.payload(action, self.world.new_checksum())
        self._send_slots[action.send_slot] = (action.key, payload)
        self.feed(ev.Gathered(action.key, num_bytes, payload.checksum))

    def _digest(self, action: act.Digest) -> None:
        self.blocks.check_digest(action)
        self.works(partial(self._digested, action))

    def _digested(self, action: act.Digest) -> None:
        self.blocks.check_digest(action)
        self.feed(ev.Digested(action.key, ("d",)))

    def _write(self, action: act.Write) -> None:
        target = self._connected.get(action.key.leg.peer)
        self.read_send_slot(action)
        self.world.checks.written(self, action)
        if target is None:
            self.later(0.0, partial(self.feed, ev.WriteFailed(action.key, "not connected")))
        else:
            self.world.wire.start(self, target, action)

    def read_send_slot(self, action: act.Write) -> Payload:
        """What the network card reads; it must be the slab the write is for."""
        key, payload = self._send_slots[action.send_slot]
        right = key == action.key and payload is not None
        if not right:
            raise Violation("send slot", f"{action.key} of {self.name} reads a slot that holds {key}")
        assert payload is not None
        return payload

    def _release(self, action: act.Release) -> None:
        self.world.checks.release(action.transfer_id, self.blocks.release(action.transfer_id))
        self._engine.released(self, action.transfer_id)


PrefillRank.hands = {
    act.Send: PrefillRank._send,
    act.Connect: PrefillRank._connect,
    act.Forget: PrefillRank._forget,
    act.Digest: PrefillRank._digest,
    act.Gather: PrefillRank._gather,
    act.Write: PrefillRank._write,
    act.Release: PrefillRank._release,
}
