"""What ZMQ reports of a socket's connections."""

from __future__ import annotations

import itertools

import zmq
from zmq.utils.monitor import parse_monitor_message

WRONG_KEY = 0x11000001
"""ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC, as the value of HANDSHAKE_FAILED_PROTOCOL."""
ONE_SIDED = 0x11000002
"""ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: one side uses keys, the other does not."""

_MAX_EVENTS = 1024
_numbers = itertools.count()


class Monitor:
    """Chosen events of one socket: poll `source`, then `read`. Must be closed before the socket."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], watched: zmq.Socket[bytes], events: int) -> None:
        self._watched = watched
        name = f"inproc://monitor-{next(_numbers)}"
        self.source = context.socket(zmq.PAIR)
        self.source.setsockopt(zmq.LINGER, 0)
        self.source.setsockopt(zmq.RCVHWM, 0)  # with a bound, ZMQ's own thread would stand still until it is read
        try:
            watched.monitor(name, events)
            self.source.connect(name)
        except zmq.ZMQError:
            self.source.close()
            raise

    def read(self) -> list[tuple[int, int]]:
        """Events since the last call, as ZMQ's number and value of each; at most 1,024."""
        events: list[tuple[int, int]] = []
        while len(events) < _MAX_EVENTS:
            try:
                message = parse_monitor_message(self.source.recv_multipart(zmq.NOBLOCK))
            except zmq.ZMQError:
                break
            events.append((int(message["event"]), int(message["value"])))
        return events

    def close(self) -> None:
        self._watched.disable_monitor()
        self.source.close()
