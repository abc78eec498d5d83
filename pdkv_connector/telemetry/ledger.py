"""Follows every transfer of a rank from what sessions hear and decide: counts outcomes, leaves a line in the log."""

from __future__ import annotations

import logging
import time

from pdkv_connector.rare_log import RareLog
from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.telemetry.causes import CANCELLED, DELIVERED, WITHDRAWN, cause_of
from pdkv_connector.telemetry.metrics import series
from pdkv_connector.telemetry.tally import Tally
from pdkv_connector.telemetry.transfer_record import CONSUMER, PRODUCER, TransferRecord
from pdkv_connector.types import PeerId, TransferId

logger = logging.getLogger(__name__)

NOT_NEEDED = "not_needed"
"""Delivered without a slab: the consumer found all of it in its own prefix cache."""
USUAL = {PRODUCER: (DELIVERED, NOT_NEEDED, CANCELLED, WITHDRAWN), CONSUMER: (DELIVERED, NOT_NEEDED, CANCELLED)}
"""Outcomes that nobody has to be warned of: clients leave as they like, and then take both their requests back."""
_EVENTS = frozenset({ev.Offered, ev.Finished, ev.Withdrawn, ev.Wanted, ev.Damaged, ev.Heard})
_ACTIONS = frozenset({act.Connect, act.Forget, act.Send, act.Write, act.Release, act.Deliver, act.Fail})


class Ledger:
    """Fed by the runtime's thread, before the engine hears of an outcome. Others read `tally` and the numbers.

    What the engine asked for is remembered, never what only a peer named. Whatever breaks here costs no transfer.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self.num_ended = 0
        self.backlog_bytes = 0
        self._faults = RareLog(logger)
        self._open: dict[tuple[str, TransferId], TransferRecord] = {}
        self._names: dict[PeerId, str] = {}

    @property
    def num_open(self) -> int:
        """Transfers that have not ended."""
        return len(self._open)

    def saw(self, event: ev.ProducerEvent | ev.ConsumerEvent, now: float) -> None:
        """A session is about to be told of `event`."""
        if type(event) in _EVENTS:
            try:
                self._saw(event, now)
            except Exception:  # noqa: BLE001 - it is logged
                self._faults.exception("transfers may be counted wrong: %s", type(event).__name__)

    def did(self, action: act.Action) -> None:
        """A session's decision is about to be carried out."""
        if type(action) in _ACTIONS:
            try:
                self._did(action, time.monotonic())
            except Exception:  # noqa: BLE001 - it is logged
                self._faults.exception("transfers may be counted wrong: %s", type(action).__name__)

    def received(self, header: msg.Slab, raw_bytes: int) -> None:
        """A slab came whole and holds `raw_bytes` of KV."""
        if record := self._open.get((CONSUMER, header.transfer_id)):
            record.slab(header.tokens, header.codec, raw_bytes, header.encoded_bytes, time.monotonic())

    def _saw(self, event: ev.ProducerEvent | ev.ConsumerEvent, now: float) -> None:
        match event:
            case ev.Offered():
                self._begin(PRODUCER, event.transfer_id, now)
            case ev.Wanted():
                record = self._begin(CONSUMER, event.transfer_id, now)
                record.meet(*event.endpoints)
            case ev.Finished():
                if finished := self._open.get((PRODUCER, event.transfer_id)):
                    finished.prefilled_at = now
            case ev.Withdrawn(holds_blocks=False):  # the others are released
                self._end(PRODUCER, event.transfer_id, f"withdrawn: {event.reason}", now)
            case ev.Damaged():
                self.tally.count("damaged_slabs")
                if damaged := self._open.get((CONSUMER, event.key.leg.transfer_id)):
                    damaged.num_repeats += 1
            case ev.Heard():
                self._heard(event.peer, event.message, now)
            case _:
                pass

    def _heard(self, peer: PeerId, message: msg.Message, now: float) -> None:
        if isinstance(message, msg.Refuse):
            self._count_refusal(CONSUMER, message)
        elif isinstance(message, msg.Delivered) and (record := self._open.get((PRODUCER, message.transfer_id))):
            record.meet(self._names.get(peer, peer))
            record.delivered_at = now

    def _did(self, action: act.Action, now: float) -> None:
        match action:
            case act.Write():
                self._wrote(action, now)
            case act.Send(message=msg.Refuse() as refuse):
                self._count_refusal(PRODUCER, refuse)
            case act.Connect():
                self._names[action.peer] = action.name
            case act.Forget():
                self._names.pop(action.peer, None)
            case act.Release():
                self._end(PRODUCER, action.transfer_id, action.outcome, now)
            case act.Deliver():
                self._end(CONSUMER, action.transfer_id, DELIVERED, now)
            case act.Fail():
                self._end(CONSUMER, action.transfer_id, action.reason, now)
            case _:
                pass

    def _wrote(self, write: act.Write, now: float) -> None:
        peer, header = write.key.leg.peer, write.header
        record = self._open.get((PRODUCER, header.transfer_id))
        if record is None:
            return
        if write.attempt > 1:
            record.num_repeats += 1
            return
        record.meet(self._names.get(peer, peer))
        record.slab(header.tokens, header.codec, write.raw_bytes, header.encoded_bytes, now)

    def _count_refusal(self, side: str, refuse: msg.Refuse) -> None:
        about = "transfer" if refuse.transfer_id else "handshake"
        self.tally.count(series("refusals", side, about, refuse.code))

    def _begin(self, side: str, transfer_id: TransferId, now: float) -> TransferRecord:
        return self._open.setdefault((side, transfer_id), TransferRecord(side, transfer_id, now))

    def _end(self, side: str, transfer_id: TransferId, reason: str, now: float) -> None:
        record = self._open.pop((side, transfer_id), None) or TransferRecord(side, transfer_id, now)
        outcome = cause_of(reason)
        if outcome == DELIVERED and not record.num_slabs:
            outcome = NOT_NEEDED
        elif outcome == DELIVERED and side == CONSUMER:
            record.delivered_at = now
            self.tally.observe("transfer_seconds", now - record.begun_at)
        elif outcome == DELIVERED and record.exposed_s is not None:
            self.tally.observe("exposed_seconds", record.exposed_s)
        self.tally.count(series("transfers", side, outcome))
        if not self._open:
            self.backlog_bytes = 0
        self.num_ended += 1
        level = logging.INFO if outcome in USUAL[side] else logging.WARNING
        logger.log(level, "%s", record.line(outcome, "" if outcome == NOT_NEEDED else reason, now))
