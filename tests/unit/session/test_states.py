"""The transition tables: every state can be reached and left, and only the last one is final."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import pytest

from pdkv_connector.errors import ProtocolError
from pdkv_connector.session.diagram import mermaid
from pdkv_connector.session.states import (
    CONSUMER,
    PEER,
    PRODUCER,
    ConsumerPhase,
    Machine,
    PeerPhase,
    ProducerPhase,
)

Table = Mapping[tuple[Any, str], Any]
MACHINES = [
    (PRODUCER, ProducerPhase, {ProducerPhase.AWAITING_REQUEST, ProducerPhase.AWAITING_CONSUMER}),
    (CONSUMER, ConsumerPhase, {ConsumerPhase.CONNECTING}),
    (PEER, PeerPhase, {PeerPhase.GREETING}),
]


def reachable(table: Table, starts: set[Any]) -> set[Any]:
    found = set(starts)
    while more := {target for (source, _), target in table.items() if source in found} - found:
        found |= more
    return found


@pytest.mark.parametrize(("table", "states", "starts"), MACHINES)
def test_every_state_is_reachable(table: Table, states: type[enum.StrEnum], starts: set[Any]) -> None:
    assert reachable(table, starts) == set(states)


def test_a_state_that_cannot_be_reached_is_seen() -> None:
    table = {edge: target for edge, target in CONSUMER.items() if edge[1] != "failed"}
    assert ConsumerPhase.FAILING not in reachable(table, {ConsumerPhase.CONNECTING})


@pytest.mark.parametrize(("table", "states", "_starts"), MACHINES)
def test_only_closed_is_final(table: Table, states: type[enum.StrEnum], _starts: set[Any]) -> None:
    final = set(states) - {source for source, _ in table}
    assert final == {state for state in states if state.value == "closed"}


@pytest.mark.parametrize("phase", [ConsumerPhase.DELIVERED, ConsumerPhase.FAILING])
def test_an_outcome_is_never_revised(phase: ConsumerPhase) -> None:
    assert reachable(CONSUMER, {phase}) == {phase, ConsumerPhase.CLOSED}


@pytest.mark.parametrize("phase", [phase for phase in ProducerPhase if phase is not ProducerPhase.CLOSED])
def test_a_producer_phase_ends_without_its_engine(phase: ProducerPhase) -> None:
    """Leases and the last consumer's leaving must be able to end whatever has not ended by itself."""
    triggers = {trigger for source, trigger in PRODUCER if source is phase}
    assert triggers & {"consumers_gone", "lease_expired"}


def test_a_wrong_trigger_is_an_error_and_changes_nothing() -> None:
    machine = Machine(CONSUMER, ConsumerPhase.CONNECTING)
    assert not machine.can("complete")
    with pytest.raises(ProtocolError, match="no transition from connecting on 'complete'"):
        machine.fire("complete")
    assert machine.state is ConsumerPhase.CONNECTING


def test_the_diagram_shows_every_arrow() -> None:
    tables: tuple[Table, ...] = (PRODUCER, CONSUMER, PEER)
    assert mermaid().count(": ") == sum(len(table) for table in tables)
