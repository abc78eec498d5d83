"""Many requests at once over two engines without a model, and everything that may go wrong with them.

`python -m tests.cases.storm FIRST COUNT` replays storms by their seeds. A seed fixes what happens and in which turn of
the engines, not how the transfer threads run beside them: replay one several times.

Every forward pass compares all KV that it attends to (`engine.py`). In the end every request must have its answer, all
blocks must be back, and nothing may be left of any transfer.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

from pdkv_connector.config import Config
from pdkv_connector.runtime import runtime
from pdkv_connector.runtime.runtime import timing_of
from pdkv_connector.session.timing import Timing
from tests.cases.engine import Engine
from tests.cases.pair import Pair
from tests.cases.text import Text
from tests.cases.weather import NUM_TEXTS, NUM_TURNS, TEXT_TOKENS, Weather, Wish, draw

QUICK: dict[str, Any] = {
    "lease_s": 1.0, "heartbeat_s": 0.05, "retry_s": 0.05, "resend_s": 0.1, "peer_timeout_s": 0.4,
    "producer_timeout_s": 0.3, "stall_timeout_s": 3.0, "poll_busy_s": 0.003, "poll_idle_s": 0.02,
}  # fmt: skip
NUM_AT_ONCE = 8
PAUSE_S = 0.003
PATIENCE_S = 40.0
LAYOUTS = ("cpu_amx", "nhd")
NOBODY = "127.0.0.1:9"
TEXTS = [Text(TEXT_TOKENS, f"x{number}") for number in range(1_000_000, 1_000_000 + NUM_TEXTS)]


def _shortened(config: Config) -> Timing:
    """Leases shorter than a setting may be: storms wait for them often."""
    return replace(timing_of(config), lease_s=0.3, reclaim_s=0.1)


class Client:
    """One wish on its way. A leg's name is empty until it was asked for; `wants` is False once the client has left."""

    def __init__(self, wish: Wish, number: int) -> None:
        self.wish = wish
        self.text = TEXTS[wish.text].first(wish.num_tokens)
        self.transfer_id = f"storm{number}"
        self.prefill = self.decode = self.sibling = ""
        self.prefill_lost = not wish.prefill_comes
        self.wants = wish.decode_comes

    @property
    def is_sequential(self) -> bool:
        """The decode leg waits for the prefill's answer."""
        return self.wish.decode_first is None


class Storm:
    """Plays a `Weather`; `tally` counts what happened, so that a test can tell that something did."""

    def __init__(self, weather: Weather, seed: int, folder: Path) -> None:
        self.weather = weather
        self.tally: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._folder = folder
        self._clients = [Client(wish, number) for number, wish in enumerate(weather.wishes)]
        self._preempted: set[tuple[int, str]] = set()
        self.pair = Pair(self._open(0, "kv_producer"), self._open(1, "kv_consumer"))

    def _open(self, side: int, role: str, **settings: Any) -> Engine:
        weather = self.weather
        block_size = weather.block_sizes[side]
        with mock.patch.object(runtime, "timing_of", _shortened):
            return Engine(
                self._folder, role, LAYOUTS[side], block_size, weather.pool_tokens[side] // block_size,
                windows=weather.windows, **QUICK, **settings,
            )  # fmt: skip

    def close(self) -> None:
        self.pair.prefill.stop()
        self.pair.decode.stop()

    # -- what happens -------------------------------------------------------------------------------------------------

    def blow(self) -> Iterator[None]:
        """The whole storm, and the calm after it, turn by turn."""
        for turn in range(NUM_TURNS):
            if turn == self.weather.restarts:
                self._restart_prefill()
            for client in self._clients:
                self._advance(client, turn)
            for engine in (self.pair.prefill, self.pair.decode):
                if self._chance.random() < 0.8:
                    self._step(engine)
            yield
        yield from self._until(lambda: not self._waiting(), "answer to every request")
        yield from self._until(self._all_released, "release of all blocks")
        yield from self._until(lambda: not self.leftovers(), "end of every transfer")
        self._count_endings()

    def _restart_prefill(self) -> None:
        """The process dies with all it had; another one takes its address."""
        self.tally["restarts"] += 1
        port = int(self.pair.prefill.endpoint.rpartition(":")[2])
        self.pair.prefill.stop()
        self.pair.prefill = self._open(0, "kv_producer", control_port=port)
        for client in self._clients:
            client.prefill_lost |= bool(client.prefill)

    def _advance(self, client: Client, turn: int) -> None:
        wish = client.wish
        if turn == wish.begins and wish.prefill_comes:
            client.prefill = self.pair.ask_prefill(client.text, client.transfer_id, max_tokens=wish.prefill_tokens)
        if turn == wish.prefill_leaves and client.prefill and not client.prefill_lost:
            self.pair.prefill.abort(client.prefill)
            client.prefill_lost = True
        if wish.decode_first is not None and turn == max(0, wish.begins - wish.decode_first):
            self._ask_decode(client, self._params(client))
        elif client.is_sequential and client.prefill in self.pair.prefill.answers and not client.prefill_lost:
            self._ask_decode(client, self.pair.params_of(client.prefill))
        if turn == wish.decode_leaves and client.wants:
            client.wants = False
            if client.decode:
                self.pair.decode.abort(client.decode)

    def _params(self, client: Client) -> dict[str, Any]:
        endpoint = NOBODY if client.wish.goes_astray else self.pair.prefill.endpoint
        return {"do_remote_prefill": True, "pdkv": {"transfer_id": client.transfer_id, "endpoints": [endpoint]}}

    def _ask_decode(self, client: Client, params: dict[str, Any]) -> None:
        if client.decode or not client.wants:
            return
        num_tokens = client.wish.decode_tokens
        client.decode = self.pair.decode.add(client.text, params, max_tokens=num_tokens)
        if client.wish.has_sibling:
            client.sibling = self.pair.decode.add(client.text, params, max_tokens=num_tokens)

    def _step(self, engine: Engine) -> None:
        engine.step()
        side = int(engine is self.pair.decode)
        for name, request in engine.scheduler.requests.items():
            if request.num_preemptions and (side, name) not in self._preempted:
                self._preempted.add((side, name))
                past = request.num_output_tokens > 0
                self.tally[f"{('prefill', 'decode')[side]} preempted{' past the prompt' if past else ''}"] += 1

    # -- what must be so in the end -----------------------------------------------------------------------------------

    def _until(self, condition: Callable[[], bool], what: str) -> Iterator[None]:
        give_up_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up_s, f"no {what}: waiting {self._waiting()}, left {self.leftovers()}"
            for client in self._clients:
                self._advance(client, NUM_TURNS)
            self._step(self.pair.prefill)
            self._step(self.pair.decode)
            yield

    def _waiting(self) -> list[str]:
        """Legs without an answer that some client waits for."""
        prefill, decode = self.pair.prefill.answers, self.pair.decode.answers
        legs = [client.prefill for client in self._clients if not client.prefill_lost and client.prefill not in prefill]
        for client in self._clients:
            if client.wants and client.decode not in decode and (client.decode or not self._never_asks(client)):
                legs.append(client.decode or "decode leg")
            if client.sibling and client.sibling not in decode:
                legs.append(client.sibling)
        return legs

    def _never_asks(self, client: Client) -> bool:
        return client.is_sequential and client.prefill_lost

    def _all_released(self) -> bool:
        return all(engine.num_free == engine.num_blocks for engine in (self.pair.prefill, self.pair.decode))

    def leftovers(self) -> dict[str, Any]:
        """What is still kept of any transfer, in either half of either engine."""
        found: dict[str, Any] = {}
        for side, engine in (("prefill", self.pair.prefill), ("decode", self.pair.decode)):
            scheduler, worker = engine.scheduler.connector._scheduler, engine.worker.half
            loop = worker.runtime._loop
            kept = {
                "sending": scheduler._producer._sending, "by transfer": scheduler._producer._by_transfer,
                "pinned": scheduler._blocks._held, "waiting": scheduler._waiting._requests,
                "receiving": scheduler._consumer._receiving, "in flight": scheduler._consumer._in_flight,
                "sent": worker._sent, "received": worker._received, "refused": worker._refused,
                "tables": worker.runtime.tables._tables, "produced": loop._producer.transfers,
                "consumed": loop._consumer.transfers,
            }  # fmt: skip
            found |= {f"{side} {what}": list(things) for what, things in kept.items() if things}
        return found

    def _count_endings(self) -> None:
        self.tally["requests"] += sum(bool(client.decode) for client in self._clients)
        self.tally += self.pair.decode.loads
        self.tally["slabs"] += self.pair.decode.worker.rank.num_slabs
        self.tally["computed tokens"] += sum(self.pair.decode.num_computed.values())
        self.tally["hybrid" if len(self.weather.windows) > 1 else "full"] += 1


@dataclass(frozen=True)
class Damage:
    """What a storm did that must not be."""

    seed: int
    what: str

    def __str__(self) -> str:
        return f"storm {self.seed}: {self.what}; replay: python -m tests.cases.storm {self.seed} 1"


def play(seeds: Iterable[int], tally: Counter[str] | None = None) -> Generator[Damage, None, None]:
    """The storms, some of them at a time, since a storm mostly waits; counts in `tally` what happened."""
    left = iter(seeds)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        blowing: list[tuple[int, Storm, Iterator[None]]] = []
        while True:
            for seed in islice(left, NUM_AT_ONCE - len(blowing)):
                storm = Storm(draw(seed), seed, Path(folder))
                opened.callback(storm.close)
                blowing.append((seed, storm, storm.blow()))
            if not blowing:
                return
            for entry in list(blowing):
                seed, storm, turns = entry
                try:
                    next(turns)
                    continue
                except StopIteration:
                    if tally is not None:
                        tally.update(storm.tally)
                except AssertionError as error:
                    yield Damage(seed, str(error))
                blowing.remove(entry)
                storm.close()
            time.sleep(PAUSE_S)


def main() -> int:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    logging.disable(logging.CRITICAL)
    tally: Counter[str] = Counter()
    begun = time.monotonic()
    found = []
    for damage in play(range(first, first + count), tally):
        print(damage, flush=True)
        found.append(damage.seed)
    print(f"{count} storms in {time.monotonic() - begun:.1f} s: {dict(tally)}")
    print(f"{len(found)} with damage: {found}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
