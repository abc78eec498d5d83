"""Memory and metrics of every process, sampled while a soak runs."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from pdkv_connector.cli.servers import Server
from tests.soak.memory import Growth, Sample, growth
from tests.soak.metrics import Metrics
from tests.soak.pair import Pair, Side

INTERVAL_S = 5.0
LEAST_BYTES = 30e6
"""Smaller processes are launchers and trackers of resources."""


class Watch:
    """Samples by process; the latest metrics of each life, so that a killed one's counts are not lost."""

    def __init__(self, pair: Pair, http: aiohttp.ClientSession) -> None:
        self._pair = pair
        self._http = http
        self._samples: dict[str, list[Sample]] = defaultdict(list)
        self.metrics: dict[str, Metrics] = {}

    async def run(self) -> None:
        """Look every few seconds until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """One sample of everything that answers: a process that still starts grows for another reason."""
        for side in self._pair.sides:
            if await self.scrape(side) is not None:
                self._sample(side.life.name, side.life.server)
        for order, proxy in self._pair.proxies.items():
            self._sample(f"proxy {order}", proxy)

    def _sample(self, name: str, server: Server) -> None:
        now = time.time()
        for label, rss_bytes in _processes(server.pid):
            self._samples[f"{name} {label}"].append(Sample(now, rss_bytes))

    async def scrape(self, side: Side) -> Metrics | None:
        """The side's metrics now; None, and the last ones stay, when it does not answer."""
        try:
            async with self._http.get(f"{side.url}/metrics", timeout=aiohttp.ClientTimeout(INTERVAL_S)) as response:
                self.metrics[side.life.name] = Metrics(await response.text())
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        return self.metrics[side.life.name]

    def total(self, role: str, name: str) -> int:
        """A counter summed over the lives of a side."""
        return sum(int(found.total(name)) for found in self._of(role))

    def by(self, role: str, name: str, label: str) -> dict[str, int]:
        """The same by the value of a label."""
        return dict(sum((found.by(name, label) for found in self._of(role)), Counter[str]()))

    def _of(self, role: str) -> list[Metrics]:
        return [found for life, found in self.metrics.items() if life.startswith(f"{role}-")]

    def growths(self) -> list[Growth]:
        """Each process that is large enough to matter."""
        return [
            growth(process, samples)
            for process, samples in sorted(self._samples.items())
            if max(sample.rss_bytes for sample in samples) >= LEAST_BYTES
        ]


def _processes(session: int) -> Iterator[tuple[str, int]]:
    """Name and resident bytes of each process of a session: its leader is `server`, others are what they call it."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session:
                name = (folder / "comm").read_text().strip()
                resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                yield ("server" if int(folder.name) == session else name), resident
        except (ProcessLookupError, FileNotFoundError):
            continue
