"""The loop of the runtime's thread: engine events, control messages, transport events, time."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pdkv_connector.rare_log import RareLog
from pdkv_connector.runtime.hands import Event, Hands
from pdkv_connector.runtime.links import INBOUND, Links
from pdkv_connector.runtime.notifications import Notifications
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.session.actions import Action, Fail, Release
from pdkv_connector.session.consumer import ConsumerSession
from pdkv_connector.session.producer import ProducerSession
from pdkv_connector.telemetry.ledger import Ledger
from pdkv_connector.transport.base import Notified, Transport, TransportEvent, WriteDone, WriteFailed
from pdkv_connector.transport.control import ControlPlane, Received

logger = logging.getLogger(__name__)

TICK_S = 0.05
SURVEY_S = 0.5
CHECK_S = 0.1
TO_PRODUCER = (msg.Hello, msg.Register, msg.Ack, msg.Heartbeat, msg.Delivered)
PRODUCER_EVENTS = (
    *(ev.Offered, ev.Ready, ev.Revoked, ev.Finished, ev.Withdrawn, ev.Pressed),
    *(ev.Gathered, ev.GatherTooLarge, ev.GatherFailed, ev.Written, ev.WriteFailed),
)


@contextmanager
def _costing_itself_only(faults: RareLog) -> Iterator[None]:
    """A fault in one event is logged and costs that event: not the ones beside it, not the thread."""
    try:
        yield
    except Exception:  # noqa: BLE001 - it is logged
        faults.exception("unexpected fault in the transfer loop; carrying on")


class Loop:
    """Feeds both sessions from one thread. `lock` is held while an event and all that follows from it is handled."""

    def __init__(
        self,
        producer: ProducerSession,
        consumer: ConsumerSession,
        hands: Hands,
        links: Links,
        control: ControlPlane,
        transport: Transport,
        ledger: Ledger,
        poll_s: tuple[float, float],
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._hands = hands
        self._links = links
        self._control = control
        self._transport = transport
        self._ledger = ledger
        self._busy_s, self._idle_s = poll_s
        self._inbox: deque[Event | Callable[[], None]] = deque()
        self._next_tick = self._next_survey = 0.0
        self._faults = RareLog(logger)
        self.lock = threading.RLock()
        self._dozing = False
        self._ended = False
        self.notifications = Notifications()
        self.stopping = False

    def post(self, event: Event | Callable[[], None]) -> None:
        """Hand over an event, or a call to make in order between events. Thread-safe.

        A busy loop looks again within its poll and is not woken: waking it from the engine's thread would put it on the
        engine's core, in front of the forward pass.
        """
        self._inbox.append(event)
        if self._dozing:
            self._control.wake()

    def run(self) -> None:
        """Turn until `stopping`."""
        while not self.stopping:
            progressed = False
            with _costing_itself_only(self._faults):
                progressed = self._turn()
            if not progressed:
                self._rest()
        self._ended = True

    def _rest(self) -> None:
        if self._busy:
            self._control.wait(self._busy_s)
            return
        self._dozing = True
        if not self._inbox:
            self._control.wait(self._idle_s)
        self._dozing = False

    @property
    def _busy(self) -> bool:
        """True while slabs may land or writes may end: transports have to be polled."""
        return bool(self._hands.num_writes or self._producer.streaming or self._consumer.transfers)

    def _turn(self) -> bool:
        progressed = self._hear_all()
        progressed |= bool(self._inbox)
        while self._inbox:
            self._take_one()
        for transport_event in self._transport.poll():
            progressed = True
            with _costing_itself_only(self._faults):
                self._transported(transport_event)
        self._tick()
        return progressed

    def _take_one(self) -> None:
        with self.lock, _costing_itself_only(self._faults):
            event = self._inbox.popleft()
            try:
                if callable(event):
                    event()
                else:
                    self.handle(event)
            except Exception:
                _answer_for(self._hands, event)
                raise

    def call(self, deed: Callable[[], None]) -> None:
        """Have a call made after all that was posted before; returns once it is made. For any other thread.

        Sockets and transports are used by the loop's thread alone: it is waited for, never stood in for.
        """
        made = threading.Event()

        def make() -> None:
            try:
                deed()
            finally:
                made.set()

        self.post(make)
        self._control.wake()
        while not self._ended and not made.wait(CHECK_S):
            continue

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + TICK_S
            with self.lock:
                self._carry_out(self._producer.tick(now))
                self._carry_out(self._consumer.tick(now))
        if now >= self._next_survey:
            self._next_survey = now + SURVEY_S
            legs = self._producer.book.turn.values()
            self._ledger.backlog_bytes = sum(leg.queue.waiting_bytes for leg in legs)

    def _hear_all(self) -> bool:
        """Take all messages, then act: what a consumer said first must not be acted upon when it took it back since.

        That matters after this process stood still: its peers may have given up on it, and the slots to others.
        """
        received = self._control.receive()
        answers: list[list[Action]] = []
        with self.lock:
            for message in received:
                with _costing_itself_only(self._faults):
                    answers.append(self._hear(message))
            for actions in answers:
                with _costing_itself_only(self._faults):
                    self._carry_out(actions)
        return bool(received)

    def _hear(self, received: Received) -> list[Action]:
        """Consumers dialled us, producers were dialled: the connection tells whose message it is."""
        inbound = received.peer.startswith(INBOUND)
        heard = ev.Heard(self._links.session_name(received.peer), received.instance, received.message)
        now = time.monotonic()
        if inbound and isinstance(received.message, (*TO_PRODUCER, msg.Abort)):
            self._ledger.saw(heard, now)
            return self._producer.handle(heard, now)
        if not inbound and not isinstance(received.message, TO_PRODUCER):
            self._ledger.saw(heard, now)
            return self._consumer.handle(heard, now)
        return []

    def _transported(self, event: TransportEvent) -> None:
        if isinstance(event, Notified):
            outcome: Event | None = self.notifications.read(event.payload)
        elif isinstance(event, WriteDone):
            outcome = self._hands.write_ended(event.write_id)
        else:
            assert isinstance(event, WriteFailed)
            outcome = self._hands.write_ended(event.write_id, event.reason)
        if outcome is not None:
            self.handle(outcome)

    def handle(self, event: Event) -> None:
        """Feed one event to the session it belongs to, and carry out what follows."""
        with self.lock:
            self._carry_out(self._feed(event))

    def _feed(self, event: Event) -> list[Action]:
        now = time.monotonic()
        self._ledger.saw(event, now)
        if isinstance(event, PRODUCER_EVENTS) or (
            isinstance(event, ev.Digested) and event.key.peer.startswith(INBOUND)
        ):
            return self._producer.handle(event, now)
        return self._consumer.handle(event, now)

    def _carry_out(self, actions: list[Action]) -> None:
        queue = deque(actions)
        while queue:
            outcome = self._hands.do(queue.popleft())
            if outcome is not None:
                # What follows from a deed comes before the next deed: a slab is written before another is encoded.
                queue.extendleft(reversed(self._feed(outcome)))


def _answer_for(hands: Hands, event: Event | Callable[[], None]) -> None:
    """The engine holds a request until these are answered: a fault of ours must not leave it waiting for ever."""
    reason = "internal fault of the connector, see the log"
    if isinstance(event, ev.Wanted):
        hands.do(Fail(event.transfer_id, reason))
    elif isinstance(event, ev.Finished):
        hands.do(Release(event.transfer_id, reason))
