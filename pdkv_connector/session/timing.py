"""Durations of the protocol, in seconds. Deadlines are computed locally, from the clock of the side that keeps them."""

from __future__ import annotations

from dataclasses import dataclass

FORGET_S = 3600.0
"""A peer without transfers that says nothing for this long is forgotten: its address may never come back.

Producers wait twice as long, so that a consumer that is idle, not gone, leaves first and greets again when it returns.
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """lease_s: a transfer lives this long without a word from its consumer, or as long as what is left to send takes.
    reclaim_s: under pressure of the engine's blocks it may be ended after this much silence already.
    heartbeat_s: how often a consumer renews its transfers.
    retry_s: an unanswered Hello, Register, Delivered or Abort is repeated after this.
    resend_s: a slab that was written this long ago and is still not acknowledged is written again.
    peer_timeout_s: a producer that says nothing for this long is lost.
    producer_timeout_s: how long a consumer waits for a request the producer has never heard of.
    stall_timeout_s: how long a consumer waits without any progress on the producer.
    """

    lease_s: float = 30.0
    reclaim_s: float = 5.0
    heartbeat_s: float = 1.0
    retry_s: float = 0.5
    resend_s: float = 2.0
    peer_timeout_s: float = 10.0
    producer_timeout_s: float = 60.0
    stall_timeout_s: float = 300.0

    @property
    def quarantine_s(self) -> float:
        """After this much silence towards a producer of the same lease, no write of it to us can be in flight.

        It starts none after `lease_s`, and those it had started end within `peer_timeout_s`: transports see to that.
        """
        return self.lease_s + self.peer_timeout_s
