"""Faults in what happens to slabs, credits and slots, one each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from pdkv_connector.session import events as ev
from pdkv_connector.session.actions import Scatter
from pdkv_connector.session.consumer import _EVENTS as CONSUMER_EVENTS
from pdkv_connector.session.consumer import ConsumerSession
from pdkv_connector.session.consumer_book import ConsumerBook
from pdkv_connector.session.consumer_clock import ConsumerClock
from pdkv_connector.session.consumer_leg import ConsumerLeg
from pdkv_connector.session.consumer_transfer import ConsumerTransfer
from pdkv_connector.session.leases import Leases
from pdkv_connector.session.messages import Heartbeat
from pdkv_connector.session.producer import _EVENTS as PRODUCER_EVENTS
from pdkv_connector.session.producer import ProducerSession
from pdkv_connector.session.producer_book import ProducerBook
from pdkv_connector.session.producer_desk import _MESSAGES as MESSAGES
from pdkv_connector.session.producer_desk import ConsumerDesk
from pdkv_connector.session.producer_leg import ProducerLeg, Progress
from pdkv_connector.session.producer_transfer import ProducerTransfer
from pdkv_connector.session.slab_queue import SlabQueue
from pdkv_connector.session.states import ProducerPhase
from tests.simulator.mutant import Method, Mutant, never, nothing


def _free_on_delivered(original: Method) -> Method:
    def advance(self: ConsumerBook, transfer: ConsumerTransfer, now: float) -> None:
        original(self, transfer, now)
        for leg in transfer.legs.values():
            if leg.complete and not leg.closed:
                self.close_leg(transfer, leg)

    return advance


def _free_on_abort(original: Method) -> Method:
    def fail(self: ConsumerBook, transfer: ConsumerTransfer, reason: str, now: float) -> None:
        original(self, transfer, reason, now)
        for leg in transfer.legs.values():
            if not leg.closed:
                self.close_leg(transfer, leg)

    return fail


def _ack_before_scatter(original: Method) -> Method:
    def on_landed(self: ConsumerSession, event: ev.Landed, now: float) -> None:
        original(self, event, now)
        for scatter in [action for action in self.book.actions if isinstance(action, Scatter)]:
            self._on_scattered(ev.Scattered(scatter.key), now)

    return on_landed


def _busy_forgets_gathers(_original: property) -> property:
    return property(lambda self: any(slab.progress is Progress.WRITING for slab in self.outgoing.values()))


def _no_renewal(original: Method) -> Method:
    def on_heartbeat(self: ConsumerDesk, peer: str, heartbeat: Any, now: float) -> None:
        found = [self.book.find(peer, *name) for name in heartbeat.transfers]
        heard = [(leg, leg.heard_at) for _, leg in filter(None, found)]
        original(self, peer, heartbeat, now)
        for leg, heard_at in heard:
            leg.heard_at = heard_at

    return on_heartbeat


def _repeat_unasked(original: Method) -> Method:
    def acknowledge(self: ProducerLeg, ack: Any, now: float, resend_s: float) -> Any:
        return original(self, msgspec.structs.replace(ack, missing=ack.credits), now, resend_s)

    return acknowledge


def _never_overdue(original: Method) -> Method:
    def ack(self: ConsumerLeg) -> Any:
        self.overdue = False
        return original(self)

    return ack


def _settle_doubtful(original: Method) -> Method:
    def free(self: ConsumerLeg, slot: int, ring: Any) -> None:
        self._doubtful.clear()
        original(self, slot, ring)

    return free


def _any_credit(original: Method) -> Method:
    def take_credits(self: ProducerLeg, credits: Any) -> None:
        self._newest_serial = -1
        original(self, credits)

    return take_credits


def _touched_slot(_original: Method) -> Method:
    return lambda self: next(iter(self._credits), None)


def _no_quarantine(original: Method) -> Method:
    def say_farewell(self: ConsumerClock, transfer: ConsumerTransfer, leg: ConsumerLeg, now: float) -> None:
        keep = self.book.timing
        self.book.timing = replace(keep, lease_s=0.0, peer_timeout_s=0.0)
        lease_s, leg.lease_s = leg.lease_s, 0.0
        original(self, transfer, leg, now)
        self.book.timing, leg.lease_s = keep, lease_s

    return say_farewell


def _only_untouched_requests(original: Method) -> Method:
    def expire(self: Leases, transfer: ProducerTransfer, now: float) -> None:
        if transfer.phase is ProducerPhase.AWAITING_CONSUMER or transfer.legs:
            original(self, transfer, now)

    return expire


def _scatter_again(_original: Method) -> Method:
    return lambda self, slab: self.lent.get(slab.credit.slot) == slab.credit


def _deliver_early(_original: property) -> property:
    return property(lambda self: len(self.received) > 0 or not self.parts)


def _leak_on_gather_failure(_original: Method) -> Method:
    def on_gather_failed(self: ProducerSession, event: ev.GatherFailed, now: float) -> None:
        if found := self.book.leg_of(event.key.leg):
            found[1].written(event.key.seq, now)
            self.book.abort_leg(*found, event.reason)

    return on_gather_failed


def _keep_slot_of_what_does_not_fit(original: Method) -> Method:
    def on_gather_too_large(self: ProducerSession, event: ev.GatherTooLarge, now: float) -> None:
        original(self, event, now)
        if self.book.send_slots:
            self.book.send_slots.pop()

    return on_gather_too_large


def _readable_after_all(original: Method) -> Method:
    def give_back(self: SlabQueue, piece: Any) -> None:
        original(self, piece)
        for layer in piece.layers:
            self._pending[piece.want][layer].add(piece.tokens)

    return give_back


def _spend_credit(original: Method) -> Method:
    def take_back(self: ProducerLeg, seq: int) -> Any:
        slab = original(self, seq)
        self._credits.remove(slab.credit)
        return slab

    return take_back


MUTANTS_OF_SLABS = (
    Mutant("slots come free with Delivered, not with Closed", ConsumerBook, "advance", _free_on_delivered),
    Mutant("slots come free with Abort, not with Closed", ConsumerBook, "fail", _free_on_abort),
    Mutant("slots come free with the first unanswered farewell", ConsumerClock, "_say_farewell", _no_quarantine),
    Mutant("slots that may be written again come free", ConsumerLeg, "_free", _settle_doubtful),
    Mutant("a slab counts as received before it is scattered", CONSUMER_EVENTS, ev.Landed, _ack_before_scatter),
    Mutant("a failure is reported while a scatter runs", ConsumerTransfer, "scattering", never),
    Mutant("a lost Register is not repeated", ConsumerClock, "_repeat_register", nothing),
    Mutant("overdue slabs are not asked for", ConsumerLeg, "ack", _never_overdue),
    Mutant("Closed is sent while gathers and writes run", ProducerLeg, "busy", never),
    Mutant("blocks are released while a gather runs", ProducerLeg, "busy", _busy_forgets_gathers),
    Mutant("a preempted request is still read", ProducerTransfer, "revoke", nothing),
    Mutant("heartbeats do not renew leases", MESSAGES, Heartbeat, _no_renewal),
    Mutant("leases do not end", Leases, "expire", nothing),
    Mutant("slabs are repeated without being asked for", ProducerLeg, "acknowledge", _repeat_unasked),
    Mutant("a credit is used again: its serial is not looked at", ProducerLeg, "_take_credits", _any_credit),
    Mutant("a slot is granted anew and written while a repeat is", ProducerLeg, "_free_credit", _touched_slot),
    Mutant("a Register that comes after its Abort is served", ConsumerDesk, "_forestall", nothing),
    Mutant("only requests that nobody asked for lose their lease", Leases, "expire", _only_untouched_requests),
    Mutant("a repeated notification scatters again", ConsumerLeg, "is_current", _scatter_again),
    Mutant("the first slab counts as all", ConsumerLeg, "whole", _deliver_early),
    Mutant("prompts are not compared", ProducerBook, "check_prompt", nothing),
    Mutant("a failed gather keeps its send slot", PRODUCER_EVENTS, ev.GatherFailed, _leak_on_gather_failure),
    Mutant("a slab that does not fit is lost", SlabQueue, "give_back", nothing),
    Mutant("a slab that does not fit is read though revoked", SlabQueue, "give_back", _readable_after_all),
    Mutant("a slab that does not fit costs its credit", ProducerLeg, "take_back", _spend_credit),
    Mutant(
        "a slab that does not fit keeps its send slot",
        PRODUCER_EVENTS, ev.GatherTooLarge, _keep_slot_of_what_does_not_fit,
    ),
)  # fmt: skip
