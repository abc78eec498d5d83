"""One rank's transfer engine: sessions, transport, control channel and rings behind a thread-safe face."""

from __future__ import annotations

import dataclasses
import logging
import threading
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from pdkv_connector.codec.base import KVMemory
from pdkv_connector.config import Config
from pdkv_connector.errors import ConfigError
from pdkv_connector.policy.codec_choice import AUTO
from pdkv_connector.runtime.advisor import Advisor
from pdkv_connector.runtime.block_tables import BlockTables
from pdkv_connector.runtime.hands import Event, Hands
from pdkv_connector.runtime.links import Links
from pdkv_connector.runtime.loop import Loop
from pdkv_connector.runtime.mover import Mover
from pdkv_connector.runtime.results import Outcome, Results
from pdkv_connector.runtime.ring_buffer import RingBuffer
from pdkv_connector.session import events as ev
from pdkv_connector.session.consumer import ConsumerSession
from pdkv_connector.session.messages import Facts, RingSpec
from pdkv_connector.session.producer import ProducerSession
from pdkv_connector.session.timing import Timing
from pdkv_connector.telemetry.ledger import Ledger
from pdkv_connector.telemetry.stats import Stats
from pdkv_connector.telemetry.timeline_writer import TimelineWriter
from pdkv_connector.transport.base import Transport
from pdkv_connector.transport.control import ControlPlane
from pdkv_connector.transport.control_keys import load_keys
from pdkv_connector.transport.registry import open_transport
from pdkv_connector.types import TransferId

logger = logging.getLogger(__name__)

STOP_S = 5.0


def timing_of(config: Config) -> Timing:
    """The protocol's durations as configured."""
    return Timing(**{name: getattr(config, name) for name in Timing.__dataclass_fields__})


class Runtime:
    """Everything between an engine's worker and the wire. Raises TransportError when it cannot open its channels.

    The engine's thread posts events and takes results; only `revoke` and `expire` may wait, for at most the handling of
    the events at hand, because blocks that the engine takes back must not be read any more.
    """

    def __init__(
        self,
        config: Config,
        engine_id: str,
        facts: Facts,
        memory: KVMemory,
        group_of_layer: Sequence[int],
        device: str = "cpu",
    ) -> None:
        self.instance = uuid.uuid4().hex
        self.memory = memory
        self.tables = BlockTables(group_of_layer)
        self.timeline = TimelineWriter(config.timeline_path)
        self.ledger = Ledger()
        self.rank = facts.pp_rank * facts.tp_size + facts.tp_rank
        self._results = Results()
        self.mover = Mover(memory, device, facts.codecs, config.integrity, config.codec_threads)
        facts = msgspec.structs.replace(facts, codecs=self.mover.codecs)
        _check_codec(config, facts)
        self._advisor = Advisor(config.codec, self.mover.records, self.timeline)
        port = config.control_port and config.control_port + self.rank
        with ExitStack() as opened:
            self._control = ControlPlane(self.instance, config.control_host, port, load_keys(config.keys_dir))
            opened.callback(self._control.close)
            self._transport = _open_transport(config)
            opened.callback(self._transport.close)
            self._loop = self._assemble(config, engine_id, facts, device)
            opened.pop_all()
        self._thread = threading.Thread(target=self._loop.run, name="pdkv-transfer", daemon=True)

    def _assemble(self, config: Config, engine_id: str, facts: Facts, device: str) -> Loop:
        send_ring = RingBuffer(config.num_slots, config.slot_bytes, device)
        receive_ring = RingBuffer(config.num_slots, config.slot_bytes, device)
        for ring in (send_ring, receive_ring):
            self._transport.register(ring.memory)
        metadata, timing, name = self._transport.metadata(), timing_of(config), self._transport.name
        memory = receive_ring.memory
        spec = RingSpec(memory.address, config.slot_bytes, config.num_slots, memory.device_id, memory.kind)
        producer = ProducerSession(
            engine_id, facts, name, metadata, config.slot_bytes, config.num_slots, timing, self._advisor
        )
        speeds = tuple(int(self.mover.records[codec].decode_bytes_per_s) for codec in facts.codecs)
        consumer = ConsumerSession(engine_id, facts, name, metadata, spec, config.window_slots, timing, speeds)
        rings = (send_ring, receive_ring)
        links = Links(self._control)
        hands = Hands(
            self.instance, self._transport, links, self.mover, self.tables, rings, self._results, self.timeline,
            self._advisor, self.ledger,
        )  # fmt: skip
        polls = (config.poll_busy_s, config.poll_idle_s)
        return Loop(producer, consumer, hands, links, self._control, self._transport, self.ledger, polls)

    @property
    def endpoint(self) -> str:
        """`host:port` of this rank's control channel."""
        return self._control.endpoint

    def start(self) -> None:
        """Start the thread; the object is useless before."""
        self._thread.start()

    def post(self, events: Sequence[Event], after: Any = None) -> None:
        """Hand events over; never waits. `after` is a CUDA event that their KV must wait for."""
        if after is not None:
            self._loop.post(lambda: self.mover.wait_for(after))
        for event in events:
            self._loop.post(event)

    def revoke(self, transfer_ids: Sequence[TransferId]) -> None:
        """The engine preempted these requests: when this returns, nothing reads their blocks any more."""

        def revoke_all() -> None:
            for transfer_id in transfer_ids:
                self.tables.drop(transfer_id)
                self._loop.handle(ev.Revoked(transfer_id))

        self._loop.call(revoke_all)

    def expire(self, transfer_id: TransferId, group: int, num_blocks: int) -> None:
        """The engine freed the first blocks of a sliding-window group: when this returns, nothing reads them."""
        with self._loop.lock:
            self.tables.expire(transfer_id, group, num_blocks)

    def take(self) -> Outcome | None:
        """News for the engine since the last call."""
        return self._results.take()

    def stats(self) -> Stats:
        """What was moved so far, and how. Thread-safe and cheap."""
        control = {
            "strangers_refused": self._control.refused_strangers,
            "rejected_frames": self._control.rejected_frames + self._loop.notifications.rejected,
        }
        return dataclasses.replace(
            self._advisor.stats(), counts=self.ledger.tally.counts() | control, backlog_bytes=self.ledger.backlog_bytes
        )

    def stop(self) -> None:
        """Stop the thread and close everything within seconds; safe to call twice."""
        self._loop.stopping = True
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._control.wake()
            self._thread.join(STOP_S)
        if self._thread.is_alive():
            logger.error("transfer thread did not stop within %g s; leaving its sockets to the OS", STOP_S)
            return
        self._transport.close()
        self._control.close()
        self.timeline.close()


def _check_codec(config: Config, facts: Facts) -> None:
    if config.codec not in (AUTO, *facts.codecs):
        raise ConfigError(
            f"codec={config.codec!r} is not available for KV of this engine: use {AUTO!r} or one of {facts.codecs}"
        )


def _open_transport(config: Config) -> Transport:
    """Every write has ended `peer_timeout_s` after its lease: `Timing.quarantine_s` counts on it."""
    options = (config.nixl_backend, dict(config.nixl_params)) if config.transport == "nixl" else ("", {})
    return open_transport(config.transport, *options, write_limit_s=config.peer_timeout_s / 2)
