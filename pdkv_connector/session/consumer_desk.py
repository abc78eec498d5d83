"""What a decode rank makes of the messages of its producers."""

from __future__ import annotations

from collections.abc import Callable

from pdkv_connector.errors import HandshakeRefused
from pdkv_connector.session import messages as msg
from pdkv_connector.session.actions import Verified
from pdkv_connector.session.compatibility import check_facts, plan_wants
from pdkv_connector.session.consumer_book import ConsumerBook
from pdkv_connector.session.consumer_leg import ConsumerLeg
from pdkv_connector.session.consumer_peer import ConsumerPeer
from pdkv_connector.session.consumer_transfer import ConsumerTransfer
from pdkv_connector.session.events import Digested, Heard
from pdkv_connector.session.messages import Facts, RefuseCode


class ProducerDesk:
    """Welcomes, standings, refusals and farewells of producers, written into the book."""

    def __init__(self, book: ConsumerBook, facts: Facts) -> None:
        self.book = book
        self.facts = facts

    def hear(self, event: Heard, now: float) -> None:
        """Take one message; a changed instance is a restarted process, whose old transfers are over."""
        peer = self.book.peers.get(event.peer)
        handler = _MESSAGES.get(type(event.message))
        if peer is None or handler is None or event.instance in peer.gone:
            return
        if peer.instance and peer.instance != event.instance:
            self._restarted(peer, now)
        peer.heard(now)
        handler(self, peer, event, now)

    def _restarted(self, peer: ConsumerPeer, now: float) -> None:
        """Slots stay lent until the new process says Closed: a Register sent to the old one may yet reach it."""
        peer.bury()
        if peer.ready:
            peer.greet("restart", now)
        for transfer, leg in self.book.legs_of(peer.endpoint):
            if leg.register is not None and not leg.complete:
                self.book.fail(transfer, f"producer {peer.endpoint} restarted", now)

    def _on_welcome(self, peer: ConsumerPeer, event: Heard, now: float) -> None:
        welcome: msg.Welcome = event.message  # type: ignore[assignment]
        if not peer.greeting:
            return
        try:
            check_facts(welcome.facts, self.facts)
        except HandshakeRefused as refusal:
            self._refused(peer, event.instance, str(refusal), now)
            return
        peer.machine.fire("welcome")
        peer.welcome, peer.instance = welcome, event.instance
        for transfer, leg in self.book.legs_of(peer.endpoint):
            if leg.register is None:
                self.register(transfer, leg, peer, now)

    def register(self, transfer: ConsumerTransfer, leg: ConsumerLeg, peer: ConsumerPeer, now: float) -> None:
        """Ask a welcomed producer for this leg's KV, with one credit to start."""
        assert peer.welcome is not None
        wanted = transfer.wanted
        if wanted.engine_id not in ("", peer.welcome.engine_id):
            there = f"engine_id differs: producer {peer.endpoint} is {peer.welcome.engine_id!r}"
            asked = f"the request names {wanted.engine_id!r}: it restarted, or the router mixes up its producers"
            self.book.fail(transfer, f"{there}, {asked}", now)
            return
        leg.lease_s = peer.welcome.lease_s
        leg.num_layers = len(peer.welcome.facts.layers)
        leg.prepare(plan_wants(peer.welcome.facts, self.facts, wanted.needs, leg.plan.global_heads))
        if leg.parts and self.book.plenty:
            leg.borrow(self.book.ring)
        leg.register = msg.Register(
            wanted.transfer_id,
            transfer.epoch,
            wanted.num_prompt_tokens,
            wanted.prompt_digest,
            leg.plan.num_consumers,
            tuple(part.want for part in leg.parts),
            tuple(leg.lent.values()),
        )
        leg.registered_at = now
        self.book.send(peer.endpoint, leg.register)
        if all(other.register for other in transfer.legs.values()) and (layer := transfer.uncovered_layer(self.facts)):
            self.book.fail(transfer, f"no producer rank supplies layer {layer} in full", now)
        self.book.advance(transfer, now)

    def _on_alive(self, peer: ConsumerPeer, event: Heard, now: float) -> None:
        alive: msg.Alive = event.message  # type: ignore[assignment]
        for standing in alive.standings:
            found = self.book.find(peer.endpoint, standing.transfer_id, standing.epoch)
            if found is None or found[1].register is None:  # an answer to what was not asked
                continue
            transfer, leg = found
            leg.acknowledged = True
            leg.stand(standing, now)
            if standing.state is not msg.ProducerState.UNKNOWN:
                transfer.unknown_since = float("inf")
            self.book.advance(transfer, now)

    def _on_refuse(self, peer: ConsumerPeer, event: Heard, now: float) -> None:
        refuse: msg.Refuse = event.message  # type: ignore[assignment]
        if refuse.code is RefuseCode.HELLO_REQUIRED:
            self._forgotten(peer, now)
        elif not refuse.transfer_id:
            self._refused(peer, event.instance, refuse.reason, now)
        elif (found := self.book.find(peer.endpoint, refuse.transfer_id, refuse.epoch)) and not found[1].complete:
            self.book.fail(found[0], f"producer {peer.endpoint} refused: {refuse.reason}", now)

    def _forgotten(self, peer: ConsumerPeer, now: float) -> None:
        """The producer does not know this process: greet again; it will refuse the transfers that it has forgotten."""
        if peer.ready:
            peer.greet("restart", now)

    def _refused(self, peer: ConsumerPeer, instance: str, reason: str, now: float) -> None:
        """A process that had welcomed us before refuses what is asked for now, not what is under way."""
        if not peer.greeting:
            return
        peer.machine.fire("welcome" if peer.welcome and peer.instance == instance else "refuse")
        for transfer, leg in self.book.legs_of(peer.endpoint):
            if leg.register is None:
                self.book.fail(transfer, f"producer {peer.endpoint} refused the handshake: {reason}", now)

    def _on_abort(self, peer: ConsumerPeer, event: Heard, now: float) -> None:
        abort: msg.Abort = event.message  # type: ignore[assignment]
        found = self.book.find(peer.endpoint, abort.transfer_id, abort.epoch)
        if found and not found[1].complete:
            self.book.fail(found[0], f"producer {peer.endpoint} gave up: {abort.reason}", now)

    def _on_closed(self, peer: ConsumerPeer, event: Heard, now: float) -> None:
        closed: msg.Closed = event.message  # type: ignore[assignment]
        if found := self.book.find(peer.endpoint, closed.transfer_id, closed.epoch):
            transfer, leg = found
            if not leg.complete:
                self.book.fail(transfer, f"producer {peer.endpoint} closed the transfer early", now)
            elif closed.digests:  # a repeated Closed has none: that the first was lost is no damage
                self.book.actions.append(Verified(transfer.transfer_id, leg.digests, closed.digests))
            self.book.close_leg(transfer, leg)

    def digested(self, event: Digested) -> None:
        """Our own digests of a leg that is whole; the producer's come with Closed."""
        transfer = self.book.transfers.get(event.key.transfer_id)
        if transfer and transfer.epoch == event.key.epoch:
            transfer.legs[event.key.peer].digests = event.digests


_MESSAGES: dict[type, Callable[[ProducerDesk, ConsumerPeer, Heard, float], None]] = {
    msg.Welcome: ProducerDesk._on_welcome,
    msg.Alive: ProducerDesk._on_alive,
    msg.Refuse: ProducerDesk._on_refuse,
    msg.Abort: ProducerDesk._on_abort,
    msg.Closed: ProducerDesk._on_closed,
}
