"""Keeps the fleet's health current: asks each server, and a prefill server that is back also who it is now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from pdkv_connector.proxy.failures import RequestFailed
from pdkv_connector.proxy.fleet import Server
from pdkv_connector.proxy.upstream import Upstream

log = logging.getLogger(__name__)

MISSES_ALLOWED = 2
"""Checks in a row that a healthy server may leave unanswered: a busy machine is slow before it is dead."""


class HealthMonitor:
    """Checks every server each `interval_s` seconds; `probing` says whether prefill servers must be probed."""

    def __init__(self, servers: Sequence[Server], upstream: Upstream, *, interval_s: float, probing: bool) -> None:
        self._upstream = upstream
        self._interval_s = interval_s
        self._probing = probing
        self._soon = {server.url: (server, asyncio.Event()) for server in servers}
        self._watches: list[asyncio.Task[None]] = []

    async def start(self, wait_s: float) -> None:
        """Begin to check; returns when every server has been checked once, or after `wait_s` seconds."""
        servers = [server for server, _ in self._soon.values()]
        first = [asyncio.create_task(self._check(server)) for server in servers]
        self._watches = [asyncio.create_task(self._watch(*pair)) for pair in zip(servers, first, strict=True)]
        await asyncio.wait(first, timeout=wait_s)

    async def stop(self) -> None:
        """End all checks."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)

    def check_soon(self, server: Server) -> None:
        """Check `server` now rather than at the end of the interval."""
        self._soon[server.url][1].set()

    async def _watch(self, server: Server, first: asyncio.Task[None]) -> None:
        await first
        soon = self._soon[server.url][1]
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(soon.wait(), self._interval_s)
            soon.clear()
            await self._check(server)

    async def _check(self, server: Server) -> None:
        was_healthy, old_fault = server.healthy, server.fault
        try:
            await self._ask(server)
            server.restore()
        except RequestFailed as failure:
            server.missed_checks += 1
            if failure.kind != "timeout" or not server.healthy or server.missed_checks > MISSES_ALLOWED:
                server.lose(failure.message)
        if server.healthy and not was_healthy:
            log.info("%s server %s is healthy", server.role, server.url)
        elif not server.healthy and server.fault != old_fault:
            log.warning("out of service: %s", server.fault)

    async def _ask(self, server: Server) -> None:
        await self._upstream.healthy(server)
        if self._probing and server.role == "prefill" and server.probed is None:
            server.probed = await self._upstream.probe(server)
