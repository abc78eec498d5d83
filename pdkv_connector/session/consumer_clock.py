"""What a decode rank does as time passes: repeat, renew, and give up."""

from __future__ import annotations

from pdkv_connector.session import messages as msg
from pdkv_connector.session.actions import Forget
from pdkv_connector.session.consumer_book import ConsumerBook
from pdkv_connector.session.consumer_leg import ConsumerLeg
from pdkv_connector.session.consumer_peer import ConsumerPeer
from pdkv_connector.session.consumer_transfer import ConsumerTransfer
from pdkv_connector.session.timing import FORGET_S
from pdkv_connector.types import PeerId

MAX_BEATS = 4096


class ConsumerClock:
    """The timers of the consumer side; `hello` is the greeting to repeat."""

    def __init__(self, book: ConsumerBook, hello: msg.Hello) -> None:
        self.book = book
        self._hello = hello
        self._ticked_at = float("inf")

    def tick(self, now: float) -> None:
        """Look at every peer and every leg once."""
        listened_s = max(0.0, min(now - self._ticked_at, self.book.timing.retry_s))
        self._ticked_at = now
        waiting: dict[PeerId, list[ConsumerLeg]] = {}
        leaving: set[PeerId] = set()
        for transfer, leg in self.book.legs():
            self._tick_leg(transfer, leg, now)
            if leg.over:
                leaving.add(leg.key.peer)
            else:
                waiting.setdefault(leg.key.peer, []).append(leg)
        for peer in list(self.book.peers.values()):
            if peer.greeting and (peer.endpoint in waiting or peer.endpoint in leaving):
                self._greet(peer, now)
            self._tick_peer(peer, waiting.get(peer.endpoint, []), listened_s, now)
            if peer.endpoint not in waiting and peer.endpoint not in leaving and now - peer.heard_at > FORGET_S:
                del self.book.peers[peer.endpoint]
                self.book.actions.append(Forget(peer.endpoint))

    def _tick_leg(self, transfer: ConsumerTransfer, leg: ConsumerLeg, now: float) -> None:
        if not transfer.open or leg.complete:
            self._say_farewell(transfer, leg, now)
        elif leg.register and not leg.acknowledged:
            self._repeat_register(leg, now)
        elif leg.streaming and now - max(leg.progress_at, leg.said_at) > self.book.timing.resend_s:
            leg.said_at, leg.overdue = now, not leg.caught_up
            self.book.owe_ack(leg)
        if transfer.open:
            self._watch(transfer, leg, now)

    def _say_farewell(self, transfer: ConsumerTransfer, leg: ConsumerLeg, now: float) -> None:
        """Repeat Delivered or Abort until Closed; after the quarantine the producer's lease is over in any case."""
        timing = self.book.timing
        if now - leg.ended_at > max(timing.lease_s, leg.lease_s) + timing.peer_timeout_s:
            self.book.close_leg(transfer, leg)
        elif now - leg.said_at > timing.retry_s:
            leg.said_at = now
            name = (leg.key.transfer_id, leg.key.epoch)
            delivered = msg.Delivered(*name, transfer.wanted.digest)
            self.book.send(leg.key.peer, delivered if leg.complete else msg.Abort(*name, transfer.reason[:1024]))

    def _repeat_register(self, leg: ConsumerLeg, now: float) -> None:
        if leg.register and now - leg.registered_at > self.book.timing.retry_s:
            leg.registered_at = now
            self.book.send(leg.key.peer, leg.register)

    def _watch(self, transfer: ConsumerTransfer, leg: ConsumerLeg, now: float) -> None:
        timing = self.book.timing
        if now - transfer.unknown_since > timing.producer_timeout_s:
            reason = f"no prefill request came to producer {leg.key.peer} within {timing.producer_timeout_s:g} s"
            self.book.fail(transfer, reason, now)
        elif now - leg.progress_at > timing.stall_timeout_s:
            self.book.fail(transfer, f"producer {leg.key.peer} made no progress for {timing.stall_timeout_s:g} s", now)

    def _tick_peer(self, peer: ConsumerPeer, waiting: list[ConsumerLeg], listened_s: float, now: float) -> None:
        """Silence is what was listened to: while this process stood still, nobody could be heard."""
        timing = self.book.timing
        peer.silent_s = peer.silent_s + listened_s if waiting else 0.0
        if waiting and peer.ready and now - peer.beat_at > peer.beat_every_s(timing.heartbeat_s):
            self._beat(peer, waiting, now)
        if waiting and peer.machine.can("silence") and peer.silent_s > timing.peer_timeout_s:
            self.lose(peer, f"did not answer for {timing.peer_timeout_s:g} s", now)

    def _beat(self, peer: ConsumerPeer, waiting: list[ConsumerLeg], now: float) -> None:
        peer.beat_at = now
        names = [(leg.key.transfer_id, leg.key.epoch) for leg in waiting if leg.acknowledged]
        for start in range(0, len(names), MAX_BEATS):
            self.book.send(peer.endpoint, msg.Heartbeat(tuple(names[start : start + MAX_BEATS])))

    def _greet(self, peer: ConsumerPeer, now: float) -> None:
        if now - peer.greeted_at > self.book.timing.retry_s:
            peer.greeted_at = now
            self.book.send(peer.endpoint, self._hello)

    def lose(self, peer: ConsumerPeer, reason: str, now: float) -> None:
        """Give up everything expected of a producer that cannot be reached."""
        peer.machine.fire("silence")
        for transfer, leg in self.book.legs_of(peer.endpoint):
            if not leg.over:
                self.book.fail(transfer, f"producer {peer.endpoint} {reason}", now)
