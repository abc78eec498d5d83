"""What a prefill rank answers to the messages of its consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pdkv_connector.errors import HandshakeRefused, LayoutError
from pdkv_connector.session import messages as msg
from pdkv_connector.session.actions import Connect, Digest, LegKey
from pdkv_connector.session.compatibility import check_facts, decoders, token_head_bytes
from pdkv_connector.session.events import Digested, Heard
from pdkv_connector.session.messages import PROTOCOL_VERSION, Facts, RefuseCode
from pdkv_connector.session.producer_book import ProducerBook
from pdkv_connector.session.producer_leg import ProducerLeg
from pdkv_connector.session.producer_transfer import ProducerTransfer
from pdkv_connector.session.slab_queue import SlabQueue
from pdkv_connector.session.timing import FORGET_S
from pdkv_connector.types import PeerId, TransferId


class ConsumerDesk:
    """Handshakes, registrations, acknowledgements and farewells of consumers, written into the book."""

    def __init__(
        self, book: ProducerBook, engine_id: str, facts: Facts, transport: str, metadata: bytes, slot_bytes: int
    ) -> None:
        self.book = book
        self.engine_id = engine_id
        self.facts = facts
        self._transport = transport
        self._metadata = metadata
        self._slot_bytes = slot_bytes
        self._layer_bytes = tuple(token_head_bytes(layer) for layer in facts.layers)

    def hear(self, event: Heard, now: float) -> None:
        """Answer one message; strangers are asked to greet first."""
        if now < self.book.deaf_until and not isinstance(event.message, msg.Delivered | msg.Abort):
            return
        known = self.book.peers.get(event.peer)
        if isinstance(event.message, msg.Hello):
            self._on_hello(event.peer, event.instance, event.message)
        elif known is None or known[1] != event.instance:
            self.book.refuse(
                event.peer, "", 0, RefuseCode.HELLO_REQUIRED, "say Hello first: this producer does not know you"
            )
        elif handler := _MESSAGES.get(type(event.message)):
            handler(self, event.peer, event.message, now)
        if event.peer in self.book.peers:
            self.book.heard_at[event.peer] = now

    def forget_silent(self, now: float) -> None:
        """Consumers that are gone for good leave nothing behind: a restarted one comes under a new name."""
        silent = {peer for peer, heard_at in self.book.heard_at.items() if now - heard_at > 2 * FORGET_S}
        for peer in silent - {key.peer for transfer in self.book.transfers.values() for key in transfer.legs}:
            self.book.lose_peer(peer, "silent for long")

    def _on_hello(self, peer: PeerId, instance: str, hello: msg.Hello) -> None:
        try:
            codecs = self._accept(hello)
        except HandshakeRefused as refusal:
            self.book.refuse(peer, "", 0, RefuseCode.INCOMPATIBLE, str(refusal))
            return
        known = self.book.peers.get(peer)
        if known is not None and known[1] != instance:
            self.book.lose_peer(peer, "consumer restarted")
        self.book.peers[peer] = (hello, instance)
        if known is None or (known[0].transport_metadata, known[1]) != (hello.transport_metadata, instance):
            name = f"{hello.engine_id} rank {hello.facts.tp_rank}"
            self.book.actions.append(Connect(peer, hello.transport_metadata, name))
        self.book.send(
            peer,
            msg.Welcome(self.engine_id, PROTOCOL_VERSION, self.facts, codecs, self._metadata, self.book.timing.lease_s),
        )

    def _accept(self, hello: msg.Hello) -> tuple[str, ...]:
        if not hello.protocol_min <= PROTOCOL_VERSION <= hello.protocol_max:
            raise HandshakeRefused(
                f"protocol differs: producer speaks {PROTOCOL_VERSION}, "
                f"consumer {hello.protocol_min} to {hello.protocol_max}"
            )
        if hello.transport != self._transport:
            raise HandshakeRefused(
                f"transport differs: producer has {self._transport!r}, consumer has {hello.transport!r}"
            )
        return check_facts(self.facts, hello.facts)

    def _on_register(self, peer: PeerId, register: msg.Register, now: float) -> None:
        if register.transfer_id in self.book.ended:
            reason = f"transfer ended: {self.book.ended[register.transfer_id]}"
            self.book.refuse(peer, register.transfer_id, register.epoch, RefuseCode.ENDED, reason)
            return
        transfer = self.book.transfers.setdefault(
            register.transfer_id, ProducerTransfer(register.transfer_id, self.book.num_layers, None)
        )
        leg = transfer.leg_of(peer, register.epoch)
        if leg is None and (not transfer.live or peer in transfer.served):
            self.book.refuse(peer, register.transfer_id, register.epoch, RefuseCode.ENDED, transfer.outcome or "served")
            return
        transfer.touched_at = now
        if leg is None and (leg := self._new_leg(transfer, peer, register)):
            leg.moved_at = now
        if leg is not None and not leg.over:
            leg.heard_at = now
            self.book.send(peer, msg.Alive((transfer.standing(register.epoch),)))

    def _new_leg(self, transfer: ProducerTransfer, peer: PeerId, register: msg.Register) -> ProducerLeg | None:
        hello, _ = self.book.peers[peer]
        try:
            self._check_wants(register)
            slot_bytes = min(self._slot_bytes, hello.ring.slot_bytes)
            queue = SlabQueue(register.wants, self._layer_bytes, slot_bytes)
        except (HandshakeRefused, LayoutError) as error:
            self.book.refuse(peer, register.transfer_id, register.epoch, RefuseCode.BAD_REQUEST, str(error))
            self.book.close_if_done(transfer)
            return None
        key = LegKey(register.transfer_id, peer, register.epoch)
        leg = ProducerLeg(key, register, queue, hello.ring, decoders(self.facts, hello))
        transfer.add_leg(leg)
        self.book.turn[key] = leg
        if transfer.machine.can("registered"):
            transfer.machine.fire("registered")
        self.book.check_prompt(transfer, leg)
        return leg if key in transfer.legs else None

    def _check_wants(self, register: msg.Register) -> None:
        named = [layer for want in register.wants for layer in want.layers]
        if len(set(named)) < len(named):
            raise HandshakeRefused(f"transfer {register.transfer_id} wants a layer twice: layers {named[:64]}")
        for want in register.wants:
            layers_known = all(layer < len(self.facts.layers) for layer in want.layers)
            tokens_known = want.tokens.start >= 0 and want.tokens.stop <= register.num_prompt_tokens
            if not layers_known or not tokens_known:
                raise HandshakeRefused(f"transfer {register.transfer_id} wants KV that does not exist: {want}")
            num_heads = min(len(self.facts.layers[layer].heads) for layer in want.layers) if want.layers else 0
            if not (0 <= want.heads.start < want.heads.stop <= num_heads):
                raise HandshakeRefused(f"transfer {register.transfer_id} wants heads {want.heads} of {num_heads}")

    def _on_ack(self, peer: PeerId, ack: msg.Ack, now: float) -> None:
        found = self.book.find(peer, ack.transfer_id, ack.epoch)
        if found is None:
            self.book.refuse(
                peer, ack.transfer_id, ack.epoch, RefuseCode.ENDED, self.book.ended.get(ack.transfer_id, "unknown")
            )
            return
        transfer, leg = found
        transfer.touched_at = leg.heard_at = now
        freed, repeats = leg.acknowledge(ack, now, self.book.timing.resend_s)
        self.book.send_slots += freed
        self.book.actions += repeats
        if leg.failure:
            self.book.abort_leg(transfer, leg, leg.failure)

    def _on_heartbeat(self, peer: PeerId, heartbeat: msg.Heartbeat, now: float) -> None:
        standings = []
        for transfer_id, epoch in heartbeat.transfers:
            found = self.book.find(peer, transfer_id, epoch)
            if found is None:
                self.book.refuse(
                    peer, transfer_id, epoch, RefuseCode.ENDED, self.book.ended.get(transfer_id, "unknown")
                )
                continue
            transfer, leg = found
            transfer.touched_at = leg.heard_at = now
            standings.append(transfer.standing(epoch))
        self.book.send(peer, msg.Alive(tuple(standings)))

    def _on_delivered(self, peer: PeerId, delivered: msg.Delivered, _now: float) -> None:
        found = self.book.find(peer, delivered.transfer_id, delivered.epoch)
        if found is None or not delivered.digest:
            self._end_by_consumer(peer, delivered.transfer_id, delivered.epoch, "delivered")
        elif not found[1].digesting:
            found[1].digesting = True
            parts = tuple((want.layers, want.tokens, want.heads) for want in found[1].register.wants)
            self.book.actions.append(Digest(found[1].key, parts, "producer"))

    def digested(self, event: Digested) -> None:
        """The digests asked for with Delivered: tell them with the farewell."""
        if found := self.book.leg_of(event.key):
            found[1].digesting, found[1].digests = False, event.digests
            self.book.end_leg(*found, "delivered")

    def _on_abort(self, peer: PeerId, abort: msg.Abort, _now: float) -> None:
        self._end_by_consumer(peer, abort.transfer_id, abort.epoch, f"aborted by consumer: {abort.reason}")

    def _end_by_consumer(self, peer: PeerId, transfer_id: TransferId, epoch: int, outcome: str) -> None:
        found = self.book.find(peer, transfer_id, epoch)
        if found is not None:
            self.book.end_leg(found[0], found[1], outcome)
        elif self.book.leg_of(LegKey(transfer_id, peer, epoch)) is None:
            self._forestall(peer, transfer_id, outcome)
            self.book.send(peer, msg.Closed(transfer_id, epoch))

    def _forestall(self, peer: PeerId, transfer_id: TransferId, outcome: str) -> None:
        """A farewell may overtake its Register: what comes late must not start a leg after Closed."""
        if transfer := self.book.transfers.get(transfer_id):
            transfer.served.add(peer)
            transfer.outcome = transfer.outcome or outcome
            self.book.close_if_done(transfer)
        elif transfer_id not in self.book.ended:
            self.book.bury(transfer_id, outcome)


_MESSAGES: dict[type, Callable[[ConsumerDesk, PeerId, Any, float], None]] = {
    msg.Register: ConsumerDesk._on_register,
    msg.Ack: ConsumerDesk._on_ack,
    msg.Heartbeat: ConsumerDesk._on_heartbeat,
    msg.Delivered: ConsumerDesk._on_delivered,
    msg.Abort: ConsumerDesk._on_abort,
}
