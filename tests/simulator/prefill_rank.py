"""One process of a prefill rank: the real session and its hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session.messages import Facts
from pdkv_connector.session.producer import ProducerSession
from pdkv_connector.types import Span
from tests.simulator.codecs import Whims, encoded_bytes
from tests.simulator.decode_rank import DecodeRank
from tests.simulator.prefill_blocks import PrefillBlocks
from tests.simulator.violation import require
from tests.simulator.wire import Payload

if TYPE_CHECKING:
    from tests.simulator.world import World


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
            engine_id, facts, "sim", b"", scenario.slot_bytes, scenario.num_send_slots, scenario.producer_timing,
            Whims(world.rng, scenario.codec_whims),
        )  # fmt: skip
        self.blocks = PrefillBlocks(f"P{number}", facts)
        self._connected: dict[str, DecodeRank] = {}
        self._send_slots: dict[int, tuple[act.SlabKey, Payload | None]] = {}

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
        for gather in list(self.blocks.held[transfer_id].reading.values()):
            self._gathered(gather)
        self.blocks.preempt(transfer_id)

    def compute(self, transfer_id: str, tokens: Span) -> None:
        """A forward pass over `tokens`: every layer becomes ready, in pieces."""
        held = self.blocks.held[transfer_id]
        held.allocated = True
        held.computed.add(tokens)
        layer = 0
        while layer < len(self.facts.layers):
            stop = self.world.rng.randint(layer + 1, len(self.facts.layers))
            self.feed(ev.Ready(transfer_id, Span(layer, stop), tokens))
            layer = stop

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
        in_use = self.blocks.fills(action.send_slot) or self.world.wire.reads(self, action.send_slot)
        require(not in_use, "send slot", f"{action.key} on P{self.number} gathers into a slot in use")
        self._send_slots[action.send_slot] = (action.key, None)
        self.blocks.check_read(action)
        self.blocks.held[action.key.leg.transfer_id].reading[action.key] = action
        self.world.loop.after(self.world.work_s(), lambda: self._gathered(action))

    def _gathered(self, action: act.Gather) -> None:
        held = self.blocks.held[action.key.leg.transfer_id]
        if self.dead or held.reading.pop(action.key, None) is None:
            return
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
        self.world.loop.after(self.world.work_s(), lambda: self._digested(action))

    def _digested(self, action: act.Digest) -> None:
        if not self.dead:
            self.blocks.check_digest(action)
            self.feed(ev.Digested(action.key, ("d",)))

    def _write(self, action: act.Write) -> None:
        target = self._connected.get(action.key.leg.peer)
        self.read_send_slot(action)
        if target is None:
            self.world.loop.after(0.0, lambda: self.feed(ev.WriteFailed(action.key, "not connected")))
        else:
            self.world.wire.start(self, target, action)

    def read_send_slot(self, action: act.Write) -> Payload:
        """What the network card reads; it must be the slab the write is for."""
        key, payload = self._send_slots[action.send_slot]
        right = key == action.key and payload is not None
        require(right, "send slot", f"{action.key} of P{self.number} reads a slot that holds {key}")
        assert payload is not None
        return payload

    def _release(self, action: act.Release) -> None:
        self.world.checks.release(action.transfer_id, self.blocks.release(action.transfer_id))


_HANDS: dict[type, Callable[[PrefillRank, Any], None]] = {
    act.Send: PrefillRank._send,
    act.Connect: PrefillRank._connect,
    act.Forget: PrefillRank._forget,
    act.Digest: PrefillRank._digest,
    act.Gather: PrefillRank._gather,
    act.Write: PrefillRank._write,
    act.Release: PrefillRank._release,
}
