"""Control messages of a peer that is in and means harm: sound frames full of lies, damaged frames, old ones, noise."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from pdkv_connector.errors import ProtocolError
from pdkv_connector.session import messages as msg
from pdkv_connector.types import Credit, Span
from tests.unit.session.test_messages_fuzz import mutate

T = TypeVar("T")
NUMBERS = (0, 0, 0, 1, 1, 2, 3, 4, 7, 16, 64, 255, 4096, 1 << 16, 1 << 31, (1 << 47) + 5, (1 << 48) - 1)
SECONDS = (30.0, 0.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
TO_PRODUCER = (msg.Hello, *3 * (msg.Register,), *5 * (msg.Ack,), msg.Heartbeat, msg.Delivered, msg.Abort)
TO_CONSUMER = (msg.Welcome, msg.Refuse, msg.Alive, msg.Abort, msg.Closed)
SHARE_RANDOM, SHARE_MUTATED, SHARE_TWISTED, SHARE_REPEATED = 0.1, 0.2, 0.15, 0.1
WRONG: tuple[Any, ...] = (
    None, True, -1, 1 << 48, (1 << 64) - 1, -(1 << 63), 0.5, "", "x" * 2000, b"", b"\xff" * 300, [], [[]] * 5000, {},
    {"a": 1}, [0, "hello"], msgspec.msgpack.Ext(1, b"x"),
)  # fmt: skip
"""Values of wrong types, beyond every bound, or too many."""
WRONG_CHECKSUM = 1 << 63 | 1
COUNTS = (64, 257, 2048, 4096, 4097)


class Liar:
    """Draws messages from `seed`; `facts` are what an honest peer would say."""

    def __init__(self, seed: int, facts: msg.Facts) -> None:
        self.chance = random.Random(seed)
        self.facts = facts
        self._made_up = ["", "unheard of", "\U0001f9ea" * 40, "n" * 256]
        self._known: deque[tuple[str, int]] = deque(maxlen=4)
        self._said: deque[bytes] = deque(maxlen=256)

    def learn(self, transfer_id: str, epoch: int) -> None:
        """A transfer that there is; it speaks of the last few it learnt."""
        self._known.append((transfer_id, epoch))

    def frame(self, instance: str, kinds: Sequence[type]) -> bytes:
        """One frame: noise, a damaged one, one with a value out of place, an old one again, or a sound one of lies."""
        die = self.chance.random()
        if die < SHARE_RANDOM:
            return self.chance.randbytes(self.chance.choice((0, 1, 7, 64, 600)))
        if die < SHARE_RANDOM + SHARE_REPEATED and self._said:
            return self.chance.choice(self._said)
        frame = self._sound(instance, kinds)
        self._said.append(frame)
        return self.spoil(frame) if die < SHARE_RANDOM + SHARE_REPEATED + SHARE_MUTATED + SHARE_TWISTED else frame

    def _sound(self, instance: str, kinds: Sequence[type]) -> bytes:
        while True:
            try:
                return msg.encode(instance, _MAKERS[self.chance.choice(kinds)](self))
            except ProtocolError:  # larger than a frame may be
                continue

    def spoil(self, frame: bytes) -> bytes:
        """The frame with its bytes changed, or one of its values."""
        if self.chance.random() < SHARE_MUTATED / (SHARE_MUTATED + SHARE_TWISTED):
            return mutate(self.chance, frame)
        node = whole = msgspec.msgpack.decode(frame)
        while True:
            at = self.chance.randrange(len(node))
            if not (isinstance(node[at], list) and node[at] and self.chance.random() < 0.8):
                node[at] = self.chance.choice(WRONG)
                return msgspec.msgpack.encode(whole)
            node = node[at]

    def header(self, transfer_id: str, epoch: int, credits: Sequence[Credit]) -> msg.Slab:
        """A slab header about one transfer, mostly under credits that were really lent. Its checksum is wrong."""
        credit = self.chance.choice(credits) if credits and self.chance.random() < 0.7 else self.credit()
        return msg.Slab(
            transfer_id if self.chance.random() < 0.9 else self.name(),
            epoch if self.chance.random() < 0.9 else self.number(),
            self.number(), self.chance.choice((0, 0, 0, 1, self.number())), self.span(), self.span(), credit,
            self.chance.choice(("raw", "raw", "split", "pickle", "")), self.number(), WRONG_CHECKSUM,
        )  # fmt: skip

    def number(self) -> int:
        return self.chance.choice(NUMBERS)

    def name(self) -> str:
        return self.leg()[0]

    def leg(self) -> tuple[str, int]:
        """A transfer and its epoch, mostly ones that there are."""
        if self._known and self.chance.random() < 0.8:
            name, epoch = self.chance.choice(self._known)
            return name, epoch if self.chance.random() < 0.8 else self.number()
        return self.chance.choice(self._made_up), self.number()

    def span(self) -> Span:
        if self.chance.random() < 0.5:
            return Span(0, self.chance.choice((1, 2, 16, 39, 40)))
        return Span(self.number(), self.number())

    def credit(self) -> Credit:
        return Credit(self.number(), self.number())

    def several(self, count: int, make: Callable[[], T]) -> tuple[T, ...]:
        if self.chance.random() < 0.002:
            count = self.chance.choice(COUNTS)
        return tuple(make() for _ in range(self.chance.choice((0, 1, 1, 2, count))))


def _facts(lie: Liar) -> msg.Facts:
    if lie.chance.random() < 0.7:
        return lie.facts
    layers = lie.several(8, lambda: _layer(lie))
    number, codecs = lie.number, ("raw", lie.name())
    return msg.Facts("toy", "d", number(), number(), number(), number(), number(), codecs, layers)


def _layer(lie: Liar) -> msg.LayerFact:
    name = f"layer.{lie.number()}"
    return msg.LayerFact(name, lie.number(), lie.span(), lie.number(), "bfloat16", lie.number())


def _standing(lie: Liar) -> msg.Standing:
    return msg.Standing(*lie.leg(), lie.chance.choice(list(msg.ProducerState)), lie.number())


def _want(lie: Liar) -> msg.Want:
    layers = lie.several(40, lambda: lie.chance.choice((0, 1, 2, 3, lie.number())))
    return msg.Want(layers, lie.span(), lie.chance.choice((Span(0, 2), lie.span())))


def _hello(lie: Liar) -> msg.Hello:
    ring = msg.RingSpec(lie.number(), lie.chance.choice((4096, lie.number())), lie.number(), lie.number(), "DRAM")
    versions = lie.chance.choice(((0, 99), (lie.number(), lie.number())))
    metadata = lie.chance.randbytes(lie.chance.choice((0, 32, 5000)))
    speeds = lie.several(8, lie.number)
    return msg.Hello(
        lie.name(), *versions, _facts(lie), lie.chance.choice(("loopback", "loopback", lie.name())),
        metadata, ring, speeds,
    )  # fmt: skip


def _register(lie: Liar) -> msg.Register:
    wants, lent = lie.several(6, lambda: _want(lie)), lie.several(200, lie.credit)
    name, epoch = lie.leg()
    digest = lie.chance.choice((f"prompt of {name}", "guess"))
    num_tokens = lie.chance.choice((40, 40, lie.number()))
    return msg.Register(name, epoch, num_tokens, digest, lie.number(), wants, lent)


def _ack(lie: Liar) -> msg.Ack:
    received, lent = lie.several(50, lie.span), lie.several(200, lie.credit)
    missing = lie.several(50, lie.credit)
    return msg.Ack(*lie.leg(), lie.number(), received, lent, missing)


def _heartbeat(lie: Liar) -> msg.Heartbeat:
    return msg.Heartbeat(lie.several(30, lie.leg))


def _delivered(lie: Liar) -> msg.Delivered:
    return msg.Delivered(*lie.leg(), lie.chance.random() < 0.5)


def _abort(lie: Liar) -> msg.Abort:
    return msg.Abort(*lie.leg(), lie.name())


def _welcome(lie: Liar) -> msg.Welcome:
    codecs = lie.chance.choice((("raw",), (), ("pickle", "raw")))
    lease_s = lie.chance.choice(SECONDS)
    return msg.Welcome(lie.name(), lie.number(), _facts(lie), codecs, lie.chance.randbytes(64), lease_s)


def _refuse(lie: Liar) -> msg.Refuse:
    return msg.Refuse(*lie.leg(), lie.chance.choice(list(msg.RefuseCode)), lie.name())


def _alive(lie: Liar) -> msg.Alive:
    return msg.Alive(lie.several(300, lambda: _standing(lie)))


def _closed(lie: Liar) -> msg.Closed:
    return msg.Closed(*lie.leg(), lie.several(4, lie.name))


_MAKERS: dict[type, Callable[[Liar], msg.Message]] = {
    msg.Hello: _hello, msg.Register: _register, msg.Ack: _ack, msg.Heartbeat: _heartbeat, msg.Delivered: _delivered,
    msg.Abort: _abort, msg.Welcome: _welcome, msg.Refuse: _refuse, msg.Alive: _alive, msg.Closed: _closed,
}  # fmt: skip
