"""Sorts the reasons that transfers end for, which are sentences, into the few words that can be counted."""

from __future__ import annotations

DELIVERED, CANCELLED, WITHDRAWN, OTHER = "delivered", "cancelled", "withdrawn", "other"

_CAUSES = (
    ("decode request ended", CANCELLED),
    (WITHDRAWN, WITHDRAWN),
    ("prefill request ended", WITHDRAWN),
    ("reclaimed", "reclaimed"),
    ("stood still", "stopped"),
    ("lease expired", "lease_expired"),
    ("prompt differs", "prompt_differs"),
    ("refused the handshake", "incompatible"),
    ("no producer rank supplies", "incompatible"),
    ("the request names", "wrong_engine"),
    ("broke the protocol", "protocol"),
    ("arriving damaged", "damaged"),
    ("never acknowledged", "unacknowledged"),
    ("taken the blocks back", "preempted"),
    ("no prefill request came", "no_prefill"),
    ("made no progress", "stalled"),
    ("did not answer", "peer_silent"),
    ("silent for long", "peer_silent"),
    ("restarted", "peer_restarted"),
    ("control connection", "unreachable"),
    ("cannot dial", "unreachable"),
    ("already in progress", "bad_request"),
    ("do not divide", "bad_request"),
    ("internal fault", "fault"),
    ("refused", "refused"),
    ("aborted by consumer", "consumer_aborted"),
    ("gave up", "producer_aborted"),
    ("closed the transfer early", "producer_aborted"),
)
"""Phrase and cause; the first that fits, since one side's reason quotes the other's."""


def cause_of(reason: str) -> str:
    """One of a few words for `reason`, however a peer may have worded it; `other` where none fits."""
    if reason == DELIVERED:
        return DELIVERED
    return next((cause for phrase, cause in _CAUSES if phrase in reason), OTHER)
