"""Made-up messages and headers reach live ranks; honest transfers beside them go on, element by element right."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pdkv_connector.session import messages as msg
from pdkv_connector.session.producer_desk import _MESSAGES, ConsumerDesk
from pdkv_connector.transport.control_keys import create_key
from tests.unit.runtime.hostile import Field, consumers_lie, headers_lie, producers_lie
from tests.unit.runtime.liar import Liar
from tests.unit.runtime.rank import toy_facts
from tests.unit.runtime.watch import Watch, watching
from tests.unit.session.test_messages_fuzz import is_refused

FEW, MANY = 3_000, 100_000
GROWTH_BYTES = 20 << 20


@pytest.fixture(params=["no keys", "keys"])
def field(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Field]:
    if request.param == "keys":
        create_key(tmp_path / "keys")
    opened = Field(str(tmp_path / "keys") if request.param == "keys" else "")
    yield opened
    opened.close()


@pytest.fixture
def open_field() -> Iterator[Field]:
    """Without keys."""
    opened = Field()
    yield opened
    opened.close()


@contextmanager
def unharmed(field: Field) -> Iterator[Watch]:
    """Memory stays flat, no thread dies, nothing unforeseen is logged, and the next honest handshake is answered."""
    with watching(field.prefill.rank, field.decode.rank) as watch:
        yield watch
        assert field.welcomes()
    assert watch.alive
    assert watch.unexpected == []
    assert watch.growth_bytes < GROWTH_BYTES


def told_by_producer(field: Field, num_messages: int) -> None:
    assert field.prefill.rank.runtime._control.rejected_frames > num_messages // 5
    assert {"Welcome", "Alive", "Refuse", "Closed"} <= field.answers.keys(), "some of the lies must be listened to"


def told_by_consumer(field: Field, num_messages: int) -> None:
    assert field.decode.rank.runtime._control.rejected_frames > num_messages // 5
    assert {"Hello", "Register", "Abort"} <= field.answers.keys(), "some of the lies must be listened to"


def believed(field: Field, num_headers: int) -> None:
    broken = [reason for reason in field.decode.rank.take().failed.values() if "broke the protocol" in reason]
    assert len(broken) > num_headers // 100, "some of the lies must be believed to be the producer's"
    assert field.decode.rank.runtime._loop.notifications.rejected > num_headers // 20


FRONTS = {
    "consumers": (consumers_lie, told_by_producer),
    "a producer": (producers_lie, told_by_consumer),
    "headers": (headers_lie, believed),
}


@pytest.mark.parametrize(("attack", "heard"), FRONTS.values(), ids=FRONTS)
def test_3000_lies(field: Field, attack: Any, heard: Any) -> None:
    with unharmed(field) as watch:
        attack(field, FEW, watch)
    heard(field, FEW)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "heard", "num_messages"),
    [
        pytest.param(*FRONTS["consumers"], MANY, id="100000 control messages to a producer's listener"),
        pytest.param(*FRONTS["a producer"], MANY // 5, id="20000 control messages to a consumer"),
        pytest.param(*FRONTS["headers"], MANY, id="100000 slab headers to a consumer with open transfers"),
    ],
)
def test_lies_by_the_hundred_thousand(open_field: Field, attack: Any, heard: Any, num_messages: int) -> None:
    with unharmed(open_field) as watch:
        attack(open_field, num_messages, watch)
    heard(open_field, num_messages)


def test_100000_spoiled_headers_are_decoded_or_refused() -> None:
    liar = Liar(4, toy_facts())
    chance = random.Random(5)
    headers = [msg.encode("p", liar.header("t", 1, ())) for _ in range(1000)]
    refused = sum(is_refused(liar.spoil(chance.choice(headers))) for _ in range(MANY))
    assert MANY // 2 < refused < MANY


# -- negative controls ------------------------------------------------------------------------------------------------


def test_a_change_beside_the_grants_is_seen(open_field: Field) -> None:
    open_field.move_one()
    open_field.decode.rank.memory.tensors[1].reshape(-1)[5] ^= 1
    assert open_field.outside_grants() != []


def test_a_fault_that_only_the_catch_all_sees_is_seen(open_field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_args: object) -> None:
        raise KeyError("nobody thought of it")

    monkeypatch.setitem(_MESSAGES, msg.Heartbeat, stumble)
    with watching(open_field.prefill.rank) as watch:
        consumers_lie(open_field, 300, watch)
    assert "nobody thought of it" in watch.unexpected[0]


def test_messages_that_are_kept_show_in_memory(open_field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    hear = ConsumerDesk.hear

    def keep(desk: ConsumerDesk, event: Any, now: float) -> None:
        kept.append(b"x" * (GROWTH_BYTES // 500))
        hear(desk, event, now)

    monkeypatch.setattr(ConsumerDesk, "hear", keep)
    with watching(open_field.prefill.rank) as watch:
        consumers_lie(open_field, FEW, watch)
    assert watch.growth_bytes > GROWTH_BYTES


def test_a_dead_thread_is_seen(open_field: Field) -> None:
    with watching(open_field.prefill.rank) as watch:
        assert watch.alive
        open_field.prefill.rank.runtime.stop()
    assert not watch.alive
