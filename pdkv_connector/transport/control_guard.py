"""Who may connect to a listener: holders of a key, where there are keys.

ZMQ checks that a peer has the listener's public key, asks here (ZAP, RFC 27) whether the peer's own key may come in,
and reports the others through a monitor. A connection that proves no key never delivers a byte to the listener.
"""

from __future__ import annotations

import logging
import os
import socket

import zmq
from zmq.utils import z85

from pdkv_connector.rare_log import RareLog
from pdkv_connector.transport.control_keys import Keys
from pdkv_connector.transport.control_monitor import ONE_SIDED, WRONG_KEY, Monitor

logger = logging.getLogger(__name__)

_MAX_QUESTIONS = 1024
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_WHY = {WRONG_KEY: "it does not have our key", ONE_SIDED: "only one side uses keys"}


class Guard:
    """Answers for one listener; `refused` counts the connections turned away. Make it before the listener is bound."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> None:
        self.refused = 0
        self._context = context
        self._admitted = {z85.decode(pair.public) for pair in keys}
        self._warnings = RareLog(logger)
        self._addresses: dict[int, str] = {}
        self._monitor: Monitor | None = None
        self._failed = ""
        self._questions = context.socket(zmq.REP)
        self._questions.setsockopt(zmq.LINGER, 0)
        self._questions.bind("inproc://zeromq.zap.01")

    def watch(self, listener: zmq.Socket[bytes]) -> list[zmq.Socket[bytes]]:
        """Start watching; returns what to poll. When it is readable, `attend`."""
        self._monitor = Monitor(self._context, listener, _EVENTS)
        return [self._questions, self._monitor.source]

    def attend(self) -> None:
        """Answer ZMQ's questions and count those that it refused by itself."""
        for _ in range(_MAX_QUESTIONS):
            try:
                question = self._questions.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                break
            self._questions.send_multipart(self._answer(question))
        if self._monitor is not None:
            self._note(self._monitor.read())

    def close(self) -> None:
        """Stop watching; the listener is closed after this."""
        if self._monitor is not None:
            self._monitor.close()
        self._questions.close()

    def _answer(self, question: list[bytes]) -> list[bytes]:
        version, number, _, address, _, mechanism, *credentials = question
        if mechanism == b"CURVE" and credentials and credentials[0] in self._admitted:
            return [version, number, b"200", b"OK", b"", b""]
        self._refuse(address.decode(errors="replace"), "its own key is not one of ours")
        return [version, number, b"400", b"unknown key", b"", b""]

    def _note(self, events: list[tuple[int, int]]) -> None:
        gone = {value for event, value in events if event == zmq.EVENT_DISCONNECTED}
        for event, value in events:
            if event == zmq.EVENT_ACCEPTED:
                # What is gone by now may have left its descriptor to another connection.
                self._addresses[value] = "" if value in gone else _address_of(value)
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self._failed = _WHY.get(value, "its handshake is malformed")
            else:  # ZMQ reports the end of a connection right after the failure of its handshake
                address = self._addresses.pop(value, "")
                if self._failed:
                    self._refuse(address, self._failed)
                self._failed = ""

    def _refuse(self, address: str, why: str) -> None:
        self.refused += 1
        where = address or "an address that was gone at once"
        self._warnings.warning("control connection from %s refused (%d so far): %s", where, self.refused, why)


def _address_of(descriptor: int) -> str:
    """Remote address of a connection of ZMQ's, IPv4 as such; empty when it is gone."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return str(connection.getpeername()[0]).removeprefix("::ffff:")
    except OSError:
        return ""
