"""Made-up messages and headers reach live ranks; honest transfers beside them go on, element by element right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pdkv_connector.transport.control_keys import create_key
from tests.unit.runtime.hostile import Field, consumers_lie, headers_lie, producers_lie

NUM_MESSAGES = 3_000
GROWTH_BYTES = 64 << 20


@pytest.fixture(params=["no keys", "keys"])
def field(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Field]:
    if request.param == "keys":
        create_key(tmp_path / "keys")
    opened = Field(str(tmp_path / "keys") if request.param == "keys" else "")
    yield opened
    opened.close()


class Sizes:
    """Resident memory, noted now and then."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    def __call__(self, _number: int, size: int) -> None:
        self.noted.append(size)

    @property
    def growth_bytes(self) -> int:
        """From the first tenth, when all is loaded, to the end."""
        return self.noted[-1] - self.noted[1]


def test_lying_consumers(field: Field) -> None:
    sizes = Sizes()
    consumers_lie(field, NUM_MESSAGES, sizes)
    assert field.prefill.rank.runtime._control.rejected_frames > NUM_MESSAGES // 10
    assert {"Welcome", "Alive", "Refuse", "Closed"} <= field.answers.keys(), "some of the lies must be listened to"
    assert sizes.growth_bytes < GROWTH_BYTES


def test_a_lying_producer(field: Field) -> None:
    sizes = Sizes()
    producers_lie(field, NUM_MESSAGES, sizes)
    assert field.decode.rank.runtime._control.rejected_frames > NUM_MESSAGES // 10
    assert {"Hello", "Register", "Abort"} <= field.answers.keys(), "some of the lies must be listened to"
    assert sizes.growth_bytes < GROWTH_BYTES


def test_lying_headers(field: Field) -> None:
    sizes = Sizes()
    headers_lie(field, NUM_MESSAGES, sizes)
    broken = [reason for reason in field.decode.rank.take().failed.values() if "broke the protocol" in reason]
    assert len(broken) > NUM_MESSAGES // 100, "some of the lies must be believed to be the producer's"
    assert sizes.growth_bytes < GROWTH_BYTES


def test_a_change_beside_the_grants_is_seen(field: Field) -> None:
    """Negative control of the comparison."""
    field.move_one()
    field.decode.rank.memory.tensors[1].reshape(-1)[5] ^= 1
    assert field.outside_grants() != []
