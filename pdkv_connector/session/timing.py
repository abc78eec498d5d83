"""Durations of the protocol, in seconds. Deadlines are computed locally, from the clock of the side that keeps them."""

from __future__ import annotations

from dataclasses import dataclass

FORGET_S = 3600.0
"""A peer without transfers that says nothing for this long is forgotten: its address may never come back.

Producers wait twice as long, so that a consumer that is idle, not gone, leaves first and greets again when it returns.
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """lease_s: a transfer lives this long without a word from its consumer.
    heartbeat_s: how often a consumer renews its transfers.
    retry_s: an unanswered Hello, Register, Delivered or Abort is repeated after this.
    resend_s: a slab that was written this long ago and is still not acknowledged is written again.
    peer_timeout_s: a producer that says nothing for this long is lost.
    producer_timeout_s: how long a consumer waits for a request the producer has never heard of.
    stall_timeout_s: how long a consumer waits without any progress on the producer.
    """

    lease_s: float = 30.0
    heartbeat_s: float = 1.0
    retry_s: float = 0.5
    resend_s: float = 2.0
    peer_timeout_s: float = 10.0
    producer_timeout_s: float = 60.0
    stall_timeout_s: float = 300.0

    @property
    def quarantine_s(self) -> float:
        """After this much silence towards a producer of the same lease, no write of it to us can be in flight.

        Its lease ends and every write it had started ends within `peer_timeout_s` more: transports must see to that.
        """
        return self.lease_s + self.peer_timeout_s
