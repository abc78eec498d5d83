"""Whatever bytes arrive, `decode` gives a frame or a ProtocolError, never anything else."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pdkv_connector.errors import ProtocolError
from pdkv_connector.session import messages as m
from pdkv_connector.types import Credit, Span

SEEDS = [
    m.encode("i", m.Register("t", 1, 9, "ab", 1, (m.Want((0, 1), Span(0, 8), Span(0, 2)),), (Credit(0, 1),))),
    m.encode("i", m.Slab("t", 1, 0, 0, Span(0, 1), Span(0, 8), Credit(0, 1), "raw", 4096, 77)),
    m.encode("i", m.Heartbeat((("t", 1), ("u", 2)))),
    m.encode("i", m.Alive((m.Standing("t", 1, m.ProducerState.QUEUED, 0),))),
]
NUM_MUTATIONS = 20_000


def is_refused(data: bytes) -> bool:
    """True for ProtocolError, False for a frame; any other exception fails the test."""
    try:
        frame = m.decode(data)
    except ProtocolError:
        return True
    assert isinstance(frame, m.Frame)
    return False


@settings(max_examples=2_000, deadline=None)
@given(st.binary(max_size=512))
def test_random_bytes(data: bytes) -> None:
    is_refused(data)


def test_mutated_frames() -> None:
    """Splices, cuts, repeats and changed bytes; some must be refused and some pass, or the mutations test nothing."""
    chance = random.Random(20)
    outcomes = [is_refused(mutate(chance, chance.choice(SEEDS))) for _ in range(NUM_MUTATIONS)]
    assert 0 < sum(outcomes) < NUM_MUTATIONS


def mutate(chance: random.Random, frame: bytes) -> bytes:
    data = bytearray(frame)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) or 1)
        kind = chance.randrange(4)
        if kind == 0 and data:
            data[at] = chance.randrange(256)
        elif kind == 1:
            del data[at : at + chance.randint(1, 8)]
        elif kind == 2:
            data[at:at] = chance.randbytes(chance.randint(1, 8))
        else:
            other = chance.choice(SEEDS)
            data[at:] = other[chance.randrange(len(other)) :]
    return bytes(data)


def test_deep_nesting_and_huge_lengths_are_refused() -> None:
    for data in (b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc1"):
        assert is_refused(data), data[:8]
        assert is_refused(b"\x93\x01\xa1i" + data), data[:8]
