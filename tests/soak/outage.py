"""A side is killed and started again at the same address; how long it takes until KV flows again."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable

from tests.soak import journal
from tests.soak.pair import Side
from tests.soak.verdict import Outage

POLL_S = 0.1
RECOVERY_LIMIT_S = 180.0


async def kill_and_restart(side: Side, note: Callable[[Outage], object]) -> None:
    """Kill -9, start, wait for health, then for the first transfer of the new life; `note` hears of each step."""
    side.life.server.kill()
    outage = Outage(side.role, time.time())
    note(outage)
    life = side.start()  # In this thread: the server ends with the thread that started it.
    await asyncio.to_thread(side.wait_ready)
    outage = dataclasses.replace(outage, healthy_at=time.time())
    note(outage)
    deadline = time.monotonic() + RECOVERY_LIMIT_S
    while (recovered_at := journal.first_delivery(life.timeline)) is None and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
    note(dataclasses.replace(outage, recovered_at=recovered_at))
