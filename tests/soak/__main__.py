"""`python -m tests.soak --minutes 30`: exit status 0 when every goal was reached, 1 when one was missed."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import machine
from pdkv_connector.cli.models import default_cache_dir
from pdkv_connector.errors import PdkvError
from tests.soak import summary
from tests.soak.ledger import Ledger
from tests.soak.oracle import Oracle
from tests.soak.outage import kill_and_restart
from tests.soak.pair import MODEL, Pair, make_pair
from tests.soak.settle import settle
from tests.soak.traffic import Traffic
from tests.soak.verdict import Result
from tests.soak.watch import Watch
from tests.soak.workload import LONGEST_TOKENS, Workload, pool

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results" / "soak.jsonl"
TELL_EVERY_S = 30.0
MOST_TOLD = 10
"""Failures told as they come; all of them are in the end."""
KILLS = {"prefill": 1 / 3, "decode": 2 / 3}
"""When each side is killed, as a share of the time."""
CALM_SHARE = 1 / 6
"""Time that a side is left alone after it is back, however long it took to start."""


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="length of the traffic; starts come on top")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=8, help="requests at a time")
    parser.add_argument("--longest", type=int, default=LONGEST_TOKENS, metavar="TOKENS", help="longest prompt")
    parser.add_argument("--abort-share", type=float, default=0.2, help="share of requests given up by the client")
    parser.add_argument("--no-kill", action="store_true", help="leave both sides alive")
    parser.add_argument("--requests", type=int, nargs="+", metavar="N", help="replay these alone, without kills")
    parser.add_argument(
        "--damage", type=int, metavar="SLAB", help="control: zero slabs from this one on, which must be noticed"
    )
    parser.add_argument("--record", action="store_true", help=f"append the summary to {RESULTS.name}")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "out" / "soak", help="folder for logs and timelines")
    return parser.parse_args(argv)


def tell(line: str) -> None:
    """One line with the time of day."""
    print(time.strftime("%H:%M:%S"), line, flush=True)


async def soak(options: argparse.Namespace, pair: Pair, http: aiohttp.ClientSession) -> dict[str, Any]:
    """Load the running pair, let it rest, and sum up."""
    oracle = Oracle(default_cache_dir() / "soak-references.json", MODEL)
    prompts = pool(options.longest)
    await oracle.learn(prompts, [side.url for side in pair.sides], tell)
    clear = oracle.clear(prompts)
    tell(f"{len(clear)} of {len(prompts)} prompts have tokens beyond doubt; soaking with seed {options.seed}")
    ledger, watch = Ledger(options.seed, oracle.tokens), Watch(pair, http)
    urls = {order: proxy.url for order, proxy in pair.proxies.items()}

    def take(result: Result) -> None:
        ledger.results.append(result)
        if ledger.verdict(result) in ("wrong", "hung", "unclear") and len(lines := ledger.complaints()) <= MOST_TOLD:
            tell(lines[-1])

    traffic = Traffic(http, urls, Workload(options.seed, clear, options.abort_share), take)
    watching = [asyncio.create_task(watch.run()), asyncio.create_task(report(ledger))]
    try:
        await load(options, pair, traffic, ledger, watch)
        tell("at rest")
        left = {side.role: await settle(side, watch, http) for side in pair.sides}
        await watch.look()
    finally:
        for task in watching:
            task.cancel()
    found = summary.figures(ledger, pair, watch, left)
    return {**found, "missed": summary.missed(found, ledger.complaints())}


async def load(options: argparse.Namespace, pair: Pair, traffic: Traffic, ledger: Ledger, watch: Watch) -> None:
    """Traffic for the time asked for, and until both sides are back from their kills."""
    if options.requests:
        await traffic.run(options.requests, options.clients)
        return
    begun, length_s = time.monotonic(), 60 * options.minutes
    kills = [] if options.no_kill else list(KILLS.items())

    async def timetable() -> None:
        calm_until = begun
        for role, share in kills:
            await sleep_until(max(calm_until, begun + share * length_s))
            await watch.look()
            tell(f"kill -9 {role}")
            await kill_and_restart(pair.side(role), ledger.note_outage)
            tell(f"{role} is back: {ledger.outage_rows()[-1]}")
            calm_until = time.monotonic() + CALM_SHARE * length_s
        await sleep_until(max(calm_until, begun + length_s))

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(timetable())
        tasks.create_task(traffic.run(while_true(lambda: not running.done()), options.clients))


async def sleep_until(moment: float) -> None:
    """Until `time.monotonic()` says so."""
    await asyncio.sleep(moment - time.monotonic())


def while_true(condition: Callable[[], bool]) -> Iterable[int]:
    """0, 1, 2, ... until the condition no longer holds."""
    return itertools.takewhile(lambda _: condition(), itertools.count())


async def report(ledger: Ledger) -> None:
    """Say now and then how far it is."""
    while True:
        await asyncio.sleep(TELL_EVERY_S)
        tell(f"{len(ledger.results)} requests: {ledger.counts()}")


async def run(options: argparse.Namespace, pair: Pair) -> dict[str, Any]:
    try:
        async with aiohttp.ClientSession() as http:
            return await soak(options, pair, http)
    except ExceptionGroup as several:
        raise several.exceptions[0] from None


def main() -> int:
    """Run, print the summary, record it when asked to."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {key: value for key, value in vars(options).items() if key not in ("out", "record")}
    header = {"bench": "soak", "machine": machine.describe(), "settings": settings}
    pair = make_pair(options.out, options.damage)
    try:
        pair.start()
        found = asyncio.run(run(options, pair))
    except PdkvError as error:
        tell(f"MISSED the soak broke off: {error}")
        return 1
    finally:
        pair.stop()
    print(json.dumps(found, indent=1))
    if options.record:
        with RESULTS.open("a") as results:
            results.write(json.dumps({**header, **found}) + "\n")
    for fault in found["missed"]:
        tell(f"MISSED {fault}")
    tell("soak: every goal was reached" if not found["missed"] else f"soak: {len(found['missed'])} goals missed")
    return int(bool(found["missed"]))


if __name__ == "__main__":
    sys.exit(main())
