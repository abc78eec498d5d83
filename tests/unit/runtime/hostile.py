"""Live ranks under fire. `python -m tests.unit.runtime.hostile 100000` is the long run: memory is printed as it goes.

Three fronts: consumers that lie to a producer, a producer that lies to a consumer, and slab headers that name what was
never granted. While each goes on, an honest pair moves real KV through the same ranks and compares every element.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from msgspec.structs import replace

from pdkv_connector.errors import ProtocolError
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.transport.base import Memory
from pdkv_connector.transport.control_keys import Keys, create_key, load_keys
from pdkv_connector.transport.loopback import LoopbackTransport
from pdkv_connector.types import Credit, Span
from tests.unit.runtime.liar import SHARE_REPEATED, TO_CONSUMER, TO_PRODUCER, Liar
from tests.unit.runtime.prompts import NUM_LAYERS, SENTINEL, Prompt
from tests.unit.runtime.rank import Blocks, Rank, toy_facts, wait_until
from tests.unit.runtime.roles import Decode, Prefill
from tests.unit.runtime.watch import rss_bytes, watching
from tests.unit.session.dialogue import hello

QUICK: dict[str, Any] = {"lease_s": 1.0, "heartbeat_s": 0.1, "peer_timeout_s": 2.0, "producer_timeout_s": 2.0}
NUM_LIARS = 4
BAIT_TOKENS = 40
BAIT_EVERY = 40
PAIRS_AT = (0.0, 0.25, 0.5, 0.75)
NUM_BAITS, HEADERS_A_TURN = 8, 50
SHARE_SPOILED = 0.2
Report = Callable[[int, int], None]


class Field:
    """An honest producer and an honest consumer, with keys or without, and bait for those who lie to them."""

    def __init__(self, keys_dir: str = "") -> None:
        self.keys: Keys = load_keys(keys_dir)
        self.wire = LoopbackTransport()
        self.prefill = Prefill(Rank("nhd", 16, keys_dir=keys_dir, **QUICK))
        self.decode = Decode(Rank("cpu_amx", 32, keys_dir=keys_dir, transport=self.wire, **QUICK))
        self.answers: Counter[str] = Counter()
        self._blocks = self.prefill.rank.allocate(BAIT_TOKENS), self.decode.rank.allocate(BAIT_TOKENS)
        self._num_baits = self._num_wanted = 0

    def move_one(self) -> None:
        """One honest transfer, every element compared. Bait that a lie keeps waiting is given up, as a client would."""
        self.decode.rank.runtime.post([ev.Unwanted(name, "client left") for name, _, _ in self.baits_under_way()])
        prompt = Prompt(90)
        self._num_wanted += 1
        self.decode.want(prompt, self.prefill)
        self.prefill.run(prompt)
        outcome, name = self.decode.rank.take(), prompt.transfer_id
        wait_until(lambda: name in self.decode.rank.take().delivered | outcome.failed.keys(), "delivery under fire")
        assert name not in outcome.failed, outcome.failed[name]
        self.prefill.rank.wait_released(prompt)
        assert self.outside_grants() == []

    def outside_grants(self) -> list[str]:
        """Where the consumer's memory is not as its honest transfers left it, but for what bait was granted.

        There a lie may land that is inside its grant and says that it has no checksum.
        """
        faults = []
        for layer in range(NUM_LAYERS):
            bait = self.decode.rank.elements(layer, self._blocks[1], Prompt(BAIT_TOKENS).needs()[layer])
            num_wanted = int((bait != SENTINEL).sum())
            for prompt, blocks, needs in self.decode.wanted.values():
                held, truth = self.decode.rank.elements(layer, blocks, needs[layer]), prompt.kv(layer, needs[layer])
                num_wanted += held.size
                if (held != truth).any():
                    faults.append(f"{prompt.transfer_id} layer {layer} differs")
            if self.decode.rank.num_changed(layer) != num_wanted:
                faults.append(f"layer {layer} changed beside what was asked for")
        return faults

    def _next_bait(self, blocks: Blocks, rank: Rank) -> str:
        self._num_baits += 1
        name = f"bait{self._num_baits}"
        rank.runtime.tables.extend(name, blocks)
        return name

    def offer_bait(self) -> tuple[str, int]:
        """A new transfer on the producer that no honest consumer will ask for; its name and a likely epoch."""
        name = self._next_bait(self._blocks[0], self.prefill.rank)
        ready = [] if self._num_baits % 3 else [ev.Ready(name, Span(0, NUM_LAYERS), Span(0, BAIT_TOKENS))]
        offered = ev.Offered(name, BAIT_TOKENS, f"prompt of {name}")
        self.prefill.rank.runtime.post([offered, *ready, ev.Finished(name)])
        return name, 1

    def want_bait(self, endpoint: str) -> tuple[str, int]:
        """The consumer asks `endpoint` for a new transfer, whose KV must never come; its name and its epoch."""
        name = self._next_bait(self._blocks[1], self.decode.rank)
        needs, digest = Prompt(BAIT_TOKENS).needs(), f"prompt of {name}"
        self.decode.rank.runtime.post([ev.Wanted(name, "", (endpoint,), 1, BAIT_TOKENS, digest, needs)])
        self._num_wanted += 1
        return name, self._num_wanted

    def keep_baits_wanted(self, count: int) -> None:
        """Up to `count` transfers of bait, one of which at least has lent slots when this returns."""

        def one_lends() -> bool:
            if len(self.decode.rank.runtime._loop._consumer.transfers) < count:
                self.want_bait(self.prefill.endpoint)
            return bool(self.baits_under_way())

        wait_until(one_lends, "bait taken")

    def baits_under_way(self) -> list[tuple[str, int, list[Credit]]]:
        """Name, epoch and lent credits of every bait that the consumer still waits for."""
        loop = self.decode.rank.runtime._loop
        with loop.lock:
            return [
                (name, transfer.epoch, [credit for leg in transfer.legs.values() for credit in leg.lent.values()])
                for name, transfer in loop._consumer.transfers.items()
                if name.startswith("bait") and transfer.open and any(leg.lent for leg in transfer.legs.values())
            ]

    def welcomes(self) -> bool:
        """True when the producer answers the handshake of an honest newcomer."""
        with plain(zmq.DEALER, self.keys) as dealer:
            dealer.setsockopt(zmq.IDENTITY, b"newcomer#1")
            dealer.connect(f"tcp://{self.prefill.endpoint}")
            greeting = replace(hello(), facts=toy_facts(), transport="loopback")
            dealer.send(msg.encode("newcomer", greeting))
            return bool(dealer.poll(30_000)) and isinstance(msg.decode(dealer.recv()).message, msg.Welcome)

    def note(self, frame: bytes) -> None:
        """Count what the ranks say to a liar."""
        self.answers[type(msg.decode(frame).message).__name__] += 1

    def close(self) -> None:
        self.prefill.rank.runtime.stop()
        self.decode.rank.runtime.stop()


@contextlib.contextmanager
def plain(kind: int, keys: Keys) -> Iterator[zmq.Socket[bytes]]:
    """A ZMQ socket that shares no code with the product; with `keys` it is a member of the cluster."""
    with zmq.Context() as context, context.socket(kind) as opened:
        opened.setsockopt(zmq.LINGER, 2_000)
        opened.setsockopt(zmq.SNDTIMEO, 30_000)
        opened.setsockopt(zmq.RCVTIMEO, 30_000)
        if kind == zmq.ROUTER:
            opened.setsockopt(zmq.ROUTER_MANDATORY, 1)  # nothing is dropped unseen
        if keys and kind == zmq.ROUTER:
            opened.setsockopt(zmq.CURVE_SERVER, 1)
        elif keys:
            opened.setsockopt(zmq.CURVE_SERVERKEY, keys[0].public)
            opened.setsockopt(zmq.CURVE_PUBLICKEY, keys[0].public)
        if keys:
            opened.setsockopt(zmq.CURVE_SECRETKEY, keys[0].secret)
        yield opened


def _paired(field: Field, num_messages: int, report: Report) -> Iterator[int]:
    """Counts to `num_messages`; honest transfers at the start, in between and at the end."""
    due = [int(share * num_messages) for share in PAIRS_AT]
    for number in range(num_messages):
        if number in due:
            field.move_one()
        if number % max(1, num_messages // 10) == 0:
            report(number, rss_bytes())
        yield number
    field.move_one()
    report(num_messages, rss_bytes())


def consumers_lie(field: Field, num_messages: int, report: Report, seed: int = 1) -> None:
    """`num_messages` frames to the producer's listener, from several identities that greet properly now and then."""
    liar = Liar(seed, toy_facts())
    with ExitStack() as opened:
        sockets = [opened.enter_context(plain(zmq.DEALER, field.keys)) for _ in range(NUM_LIARS)]
        for number, dealer in enumerate(sockets):
            dealer.setsockopt(zmq.IDENTITY, f"liar{number}#1".encode())
            dealer.connect(f"tcp://{field.prefill.endpoint}")
        for number in _paired(field, num_messages, report):
            if number % BAIT_EVERY == 0:
                liar.learn(*field.offer_bait())
            dealer = sockets[number % NUM_LIARS]
            dealer.send(liar.frame(f"liar{number % NUM_LIARS}", TO_PRODUCER))
            while dealer.poll(0):
                field.note(dealer.recv())


def producers_lie(field: Field, num_messages: int, report: Report, seed: int = 2) -> None:
    """`num_messages` frames from a producer that the consumer was sent to by its router; it restarts all the time."""
    liar = Liar(seed, toy_facts())
    with plain(zmq.ROUTER, field.keys) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        caller = b""
        for number in _paired(field, num_messages, report):
            if number % BAIT_EVERY == 0:
                liar.learn(*field.want_bait(f"127.0.0.1:{port}"))
                while not caller or router.poll(0):
                    caller, frame = router.recv_multipart()
                    field.note(frame)
            while not _sent(router, caller, liar.frame(f"p{number // (2 * BAIT_EVERY)}", TO_CONSUMER)):
                liar.learn(*field.want_bait(f"127.0.0.1:{port}"))
                field.note(router.recv_multipart()[1])


def _sent(router: zmq.Socket[bytes], caller: bytes, frame: bytes) -> bool:
    """False when a frame beyond the bound ended the caller's connection: it opens another once it has a word to say."""
    try:
        router.send_multipart([caller, frame])
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise
        return False
    return True


def headers_lie(field: Field, num_headers: int, report: Report, seed: int = 3) -> None:
    """`num_headers` slab headers in the name of the producer, about transfers that are really under way."""
    liar, writer, spare = Liar(seed, toy_facts()), LoopbackTransport(), np.zeros(64, np.uint8)
    mine, theirs = Memory(spare.ctypes.data, 1), Memory(spare.ctypes.data + 32, 1)
    writer.register(mine)
    field.wire.register(theirs)
    writer.connect("d", field.wire.metadata())
    instance = field.prefill.rank.runtime.instance
    baits: list[tuple[str, int, list[Credit]]] = []
    said = [msg.encode(instance, msg.Closed("t", 1))]
    for number in _paired(field, num_headers, report):
        if number % HEADERS_A_TURN == 0:
            wait_until(lambda: not field.wire._events, "end of the headers so far")
            field.keep_baits_wanted(NUM_BAITS)
            baits = field.baits_under_way() or baits
        with contextlib.suppress(ProtocolError):
            said = [*said[-50:], msg.encode(instance, liar.header(*liar.chance.choice(baits)))]
        header = liar.chance.choice(said) if liar.chance.random() < SHARE_REPEATED else said[-1]
        writer.write("d", mine, theirs, liar.spoil(header) if liar.chance.random() < SHARE_SPOILED else header)
        writer.poll()


FRONTS = {"consumers lie": consumers_lie, "producers lie": producers_lie, "headers lie": headers_lie}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("num_messages", type=int)
    parser.add_argument("--keys", type=Path, help="a folder to make keys in and to use them from")
    options = parser.parse_args()
    if options.keys:
        create_key(options.keys)
    for name, attack in FRONTS.items():
        field, begun = Field(str(options.keys or "")), time.monotonic()
        ranks = field.prefill.rank, field.decode.rank
        print(name)
        with watching(*ranks) as watch:
            attack(field, options.num_messages, lambda number, size: print(f"  {number:7} {size / 2**20:.1f} MiB"))
        rejected = sum(rank.runtime._control.rejected_frames for rank in ranks)
        reasons = Counter(reason.split(":")[0].partition(" from")[0] for reason in ranks[1].take().failed.values())
        print(f"  {time.monotonic() - begun:.1f} s; {rejected} frames rejected; told {dict(field.answers)}")
        print(f"  baits that failed: {len(ranks[1].outcome.failed)}, {reasons.most_common(4)}")
        print(f"  {watch.num_lines} log lines; unexpected: {watch.unexpected}; all alive: {watch.alive}")
        field.close()


if __name__ == "__main__":
    main()
