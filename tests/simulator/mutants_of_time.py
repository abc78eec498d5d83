"""Faults in what happens as time passes: leases, silence, restarts, clocks, and who waits for whom."""

from __future__ import annotations

from typing import Any

import msgspec

from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.session.actions import Release, Send
from pdkv_connector.session.consumer_book import ConsumerBook
from pdkv_connector.session.consumer_clock import ConsumerClock
from pdkv_connector.session.consumer_desk import ProducerDesk
from pdkv_connector.session.consumer_leg import ConsumerLeg
from pdkv_connector.session.consumer_transfer import ConsumerTransfer
from pdkv_connector.session.leases import Leases
from pdkv_connector.session.producer import _EVENTS as PRODUCER_EVENTS
from pdkv_connector.session.producer import ProducerSession
from pdkv_connector.session.producer_book import ProducerBook
from pdkv_connector.session.producer_desk import ConsumerDesk
from pdkv_connector.session.producer_leg import ProducerLeg
from pdkv_connector.session.producer_transfer import ProducerTransfer
from tests.simulator.mutant import Method, Mutant, nothing

DAY_S = 86400.0
"""The longest lease that a Welcome may name."""


def _nothing_to_repeat(_original: Method) -> Method:
    return lambda *_args: []


def _one_farewell(original: Method) -> Method:
    def say_farewell(self: ConsumerClock, transfer: ConsumerTransfer, leg: ConsumerLeg, now: float) -> None:
        leg.said_at = now
        original(self, transfer, leg, now)

    return say_farewell


def _never_silent(original: Method) -> Method:
    def lose(self: ConsumerClock, peer: Any, reason: str, now: float) -> None:
        if not reason.startswith("did not answer"):
            original(self, peer, reason, now)

    return lose


def _lease_as_deadline(original: Method) -> Method:
    def hear(self: ConsumerDesk, event: ev.Heard, now: float) -> None:
        original(self, event, now)
        for index, action in enumerate(self.book.actions):
            if isinstance(action, Send) and isinstance(action.message, msg.Welcome):
                deadline = msgspec.structs.replace(
                    action.message, lease_s=min(max(0.1, now + self.book.timing.lease_s), DAY_S)
                )
                self.book.actions[index] = Send(action.peer, deadline)

    return hear


def _deadline_as_lease(original: Method) -> Method:
    def hear(self: ProducerDesk, event: ev.Heard, now: float) -> None:
        if isinstance(event.message, msg.Welcome):
            welcome = msgspec.structs.replace(event.message, lease_s=event.message.lease_s - now)
            event = ev.Heard(event.peer, event.instance, welcome)
        original(self, event, now)

    return hear


def _reclaim_and_go_on(_original: Method) -> Method:
    def give_up(self: Leases, transfer: ProducerTransfer, _now: float) -> None:
        self._book.bury(transfer.transfer_id, "reclaimed")
        transfer.finished = False
        self._book.actions.append(Release(transfer.transfer_id, "reclaimed"))

    return give_up


def _believe_all(original: Method) -> Method:
    def end_all(self: Leases, reason: str, now: float) -> None:
        original(self, reason, now)
        self._book.deaf_until = now

    return end_all


def _release_at_once(original: Method) -> Method:
    def on_finished(self: ProducerSession, event: ev.Finished, now: float) -> None:
        original(self, event, now)
        if transfer := self.transfers.get(event.transfer_id):
            transfer.finished = False
            self.book.actions.append(Release(event.transfer_id, "finished"))

    return on_finished


def _window_at_once(_original: Method) -> Method:
    def lend_slots(self: ConsumerBook) -> None:
        for leg in [leg for _, leg in self.legs() if leg.streaming and not leg.over and not leg.whole]:
            while leg.borrow(self.ring):
                self.owe_ack(leg)

    return lend_slots


def _everybody_alone(_original: Method) -> Method:
    return lambda _self, key: key


def _keep_in_turn(original: Method) -> Method:
    def end_leg(self: ProducerBook, transfer: ProducerTransfer, leg: ProducerLeg, outcome: str) -> None:
        original(self, transfer, leg, outcome)
        self.turn[leg.key] = leg

    return end_leg


def _keep_peers(original: Method) -> Method:
    def lose_peer(self: ProducerBook, peer: str, reason: str) -> None:
        kept = self.peers.get(peer), self.heard_at.get(peer, 0.0)
        original(self, peer, reason)
        if kept[0]:
            self.peers[peer + "'"], self.heard_at[peer + "'"] = kept[0], kept[1]

    return lose_peer


MUTANTS_OF_TIME = (
    Mutant("what is asked for again is not written again", ProducerLeg, "_repeat_lost", _nothing_to_repeat),
    Mutant("Delivered and Abort are said once only", ConsumerClock, "_say_farewell", _one_farewell),
    Mutant("leases are not renewed", ConsumerClock, "_beat", nothing),
    Mutant("a peer that stopped is never noticed", ConsumerClock, "lose", _never_silent),
    Mutant(
        "a lease travels as a point in time", ConsumerDesk, "hear", _lease_as_deadline,
        Mutant("", ProducerDesk, "hear", _deadline_as_lease),
    ),
    Mutant("a reclaimed lease is still read", Leases, "_give_up", _reclaim_and_go_on),
    Mutant("pressure for blocks is not felt", Leases, "reclaim", nothing),
    Mutant("blocks are freed before Release", PRODUCER_EVENTS, ev.Finished, _release_at_once),
    Mutant("the first transfer borrows the whole ring", ConsumerBook, "lend_slots", _window_at_once),
    Mutant("one engine may hold every send slot", ProducerBook, "_engine_of", _everybody_alone),
    Mutant("a restarted consumer is not recognised", ProducerBook, "lose_peer", nothing),
    Mutant("a producer that stood still writes on", Leases, "end_all", nothing),
    Mutant("what lay in the sockets of a stopped producer counts", Leases, "end_all", _believe_all),
    Mutant("legs that are over stay in turn", ProducerBook, "end_leg", _keep_in_turn),
    Mutant("peers that are gone are kept", ProducerBook, "lose_peer", _keep_peers),
)  # fmt: skip
