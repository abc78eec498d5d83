"""When all is over nothing is left behind: no block in use, no request, no transfer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from pdkv_connector.cli import client
from pdkv_connector.errors import PdkvError
from pdkv_connector.telemetry.metrics import METRICS
from tests.soak import journal
from tests.soak.metrics import Metrics
from tests.soak.pair import Side
from tests.soak.watch import Watch

SETTLE_S = 90.0
"""Three leases: nothing may be held for longer."""
POLL_S = 2.0
USAGE = "vllm:kv_cache_usage_perc"
REQUESTS = ("vllm:num_requests_running", "vllm:num_requests_waiting")
RESERVED = (METRICS["leases"].sample_name, METRICS["reserved_tokens"].sample_name)


@dataclass(frozen=True)
class Left:
    """What one engine still holds after `after_s` of rest; `kv_usage` is a share of its pool, None where unknown.

    `reserved`: leases of a prefill engine, tokens a decode engine has allocated for KV still to come.
    """

    kv_usage: float | None
    requests: int
    reserved: int
    open_transfers: tuple[str, ...]
    after_s: float

    @property
    def clean(self) -> bool:
        return self.kv_usage == 0 and not (self.requests or self.reserved or self.open_transfers)

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
        return Left(None, 0, 0, (), after_s)
    found = await watch.scrape(side) or Metrics("")
    usage = found.total(USAGE) if found.has(USAGE) else None
    requests, reserved = (int(sum(map(found.total, names))) for names in (REQUESTS, RESERVED))
    return Left(usage, requests, reserved, tuple(journal.transfers(journal.read(side.life.timeline)).open), after_s)
