"""When all is over nothing is left behind: no block in use, no request, no transfer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from pdkv_connector.cli import client
from pdkv_connector.errors import PdkvError
from tests.soak import journal
from tests.soak.pair import Side
from tests.soak.watch import Watch

SETTLE_S = 90.0
"""Three leases: nothing may be held for longer."""
POLL_S = 2.0
USAGE = "vllm:kv_cache_usage_perc"
REQUESTS = ("vllm:num_requests_running", "vllm:num_requests_waiting")


@dataclass(frozen=True)
class Left:
    """What one engine still holds after `after_s` of rest; `kv_usage` is a share of its pool, None where unknown."""

    kv_usage: float | None
    requests: int
    open_transfers: tuple[str, ...]
    after_s: float

    @property
    def clean(self) -> bool:
        return self.kv_usage == 0 and not self.requests and not self.open_transfers

    def as_row(self) -> dict[str, Any]:
        return {**asdict(self), "after_s": round(self.after_s, 1)}


async def settle(side: Side, watch: Watch, http: aiohttp.ClientSession) -> Left:
    """Ask until the engine is clean, or has had time enough."""
    begun = time.monotonic()
    while True:
        left = await _look(side, watch, http, time.monotonic() - begun)
        if left.clean or left.after_s > SETTLE_S:
            return left
        await asyncio.sleep(POLL_S)


async def _look(side: Side, watch: Watch, http: aiohttp.ClientSession, after_s: float) -> Left:
    # Gauges are set by steps: one short request, gone when it is answered, brings them up to date.
    try:
        await client.complete(http, side.url, {"prompt": [1], "max_tokens": 1})
    except PdkvError:
        return Left(None, 0, (), after_s)
    found = await watch.scrape(side)
    usage = found.total(USAGE) if found is not None and found.has(USAGE) else None
    requests = 0 if found is None else int(sum(found.total(name) for name in REQUESTS))
    return Left(usage, requests, tuple(journal.transfers(journal.read(side.life.timeline)).open), after_s)
