"""A connection that this process dials, with whichever of its keys the listener takes."""

from __future__ import annotations

import time
from contextlib import ExitStack

import zmq

from pdkv_connector.errors import TransportError
from pdkv_connector.rare_log import RareLog
from pdkv_connector.transport.control_keys import Keys
from pdkv_connector.transport.control_monitor import ONE_SIDED, Monitor
from pdkv_connector.transport.sockets import open_dealer

FRESH_S = 5.0
"""A refusal is told to the sender when it is no older: later the listener may have been put right."""

_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_EVENTS = _FAILURES | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED


class Dial:
    """One DEALER to one endpoint. Raises TransportError when it cannot be opened.

    ZMQ connects again by itself after most failures, but after some, a refusal among them, never: then the next `send`
    opens another DEALER. So it does after every failed handshake while there is another key to try.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        poller: zmq.Poller,
        identity: bytes,
        endpoint: str,
        keys: Keys,
        warnings: RareLog,
    ) -> None:
        self._context = context
        self._poller = poller
        self._identity = identity
        self._endpoint = endpoint
        self._keys = keys
        self._warnings = warnings
        self._num_failures = 0
        self._refusal = ""
        self._refused_at = 0.0
        self._open()

    def _open(self) -> None:
        self._given_up = True  # until there is a connection to wait for
        pair = self._keys[self._num_failures % len(self._keys)] if self._keys else None
        with ExitStack() as opened:
            try:
                self.dealer = open_dealer(self._context, self._identity, pair)
                opened.callback(self.dealer.close)
                self._monitor = Monitor(self._context, self.dealer, _EVENTS)
                opened.callback(self._monitor.close)
                self.dealer.connect(f"tcp://{self._endpoint}")
            except zmq.ZMQError as error:  # as when this process has no socket left
                raise TransportError(f"cannot dial {self._endpoint!r}: {error}") from error
            opened.pop_all()
        for source in (self.dealer, self._monitor.source):
            self._poller.register(source, zmq.POLLIN)
        self._given_up = self._spoiled = False

    def send(self, frame: bytes) -> None:
        """Queue a frame. Raises ZMQError when the queue is full and, once after a refusal, TransportError."""
        refusal, self._refusal = self._refusal, ""
        if refusal and time.monotonic() - self._refused_at < FRESH_S:
            raise TransportError(refusal)
        if self._given_up or self._spoiled:
            self.close()
            self._open()
        self.dealer.send(frame, zmq.NOBLOCK)

    def attend(self) -> None:
        """See what became of the connection."""
        for event, value in self._monitor.read():
            if event == zmq.EVENT_DISCONNECTED:
                self._given_up = True
            elif event == zmq.EVENT_CONNECT_RETRIED:
                self._given_up = False
            else:
                self._failed(event, value)

    def close(self) -> None:
        """Close the connection, dropping what is queued; safe to call twice."""
        if not self.dealer.closed:
            self._poller.unregister(self.dealer)
            self._poller.unregister(self._monitor.source)
            self._monitor.close()
            self.dealer.close()

    def _failed(self, event: int, value: int) -> None:
        reason = f"control connection to {self._endpoint} failed: {self._why(event, value)}"
        refused = event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        if refused or self._keys:
            self._warnings.warning("%s", reason)
        if refused:
            self._refusal, self._refused_at = reason, time.monotonic()
        self._num_failures += 1
        self._spoiled = len(self._keys) > 1

    def _why(self, event: int, value: int) -> str:
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return "it does not accept our key: give both sides the same keys_dir"
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            return "it broke off the handshake, as one with another key does"
        if value != ONE_SIDED:
            return "its handshake is malformed, or made with another key"
        return "it uses no keys, this side does" if self._keys else "it demands a key: set keys_dir here as well"
