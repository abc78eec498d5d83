"""Draws the transition tables as a Mermaid state diagram."""

from __future__ import annotations

from collections.abc import Mapping

from pdkv_connector.session.states import CONSUMER, PEER, PRODUCER, ConsumerPhase, PeerPhase, ProducerPhase, State


def _machine(name: str, table: Mapping[tuple[State, str], State], starts: tuple[State, ...]) -> list[str]:
    prefix = f"{name}_"
    lines = [f"    state {name} {{"]
    lines += [f"        [*] --> {prefix}{start}" for start in starts]
    lines += [
        f"        {prefix}{source} --> {prefix}{target}: {trigger}" for (source, trigger), target in table.items()
    ]
    return [*lines, "    }"]


def mermaid() -> str:
    """The three machines as one Mermaid `stateDiagram-v2` text."""
    return "\n".join(
        [
            "stateDiagram-v2",
            *_machine("producer", PRODUCER, (ProducerPhase.AWAITING_REQUEST, ProducerPhase.AWAITING_CONSUMER)),
            *_machine("consumer", CONSUMER, (ConsumerPhase.CONNECTING,)),
            *_machine("peer", PEER, (PeerPhase.GREETING,)),
        ]
    )
