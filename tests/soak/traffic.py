"""Clients that send requests one after the other, give some up, and keep what came back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import aiohttp

from pdkv_connector.cli import client
from pdkv_connector.cli.client import Reply
from pdkv_connector.errors import PdkvError
from tests.soak.verdict import End, Result
from tests.soak.workload import Request, Workload

HUNG_S = 420.0
"""Longest wait for an answer; the connector's own last resort is `stall_timeout_s`, 300 s."""
AFTER_FAILURE_S = 1.0


@dataclass
class Traffic:
    """`proxies` are base URLs by order of dispatch; `take` gets every result as it comes."""

    http: aiohttp.ClientSession
    proxies: Mapping[str, str]
    workload: Workload
    take: Callable[[Result], object]

    async def run(self, numbers: Iterable[int], num_clients: int) -> None:
        """Send the requests of these numbers, `num_clients` at a time, and wait for the last answers."""
        shared = iter(numbers)
        async with asyncio.TaskGroup() as clients:
            for _ in range(num_clients):
                clients.create_task(self._client(shared))

    async def _client(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            result = await self._send(self.workload.request(number))
            self.take(result)
            if result.end == "failed":
                await asyncio.sleep(AFTER_FAILURE_S)

    async def _send(self, request: Request) -> Result:
        seen = Reply(sent_at=time.time())

        def keep(reply: Reply) -> None:
            seen.token_ids, seen.transfer_id = list(reply.token_ids), reply.transfer_id

        end: End
        reason = ""
        patience_s = HUNG_S if request.abort_after_s is None else request.abort_after_s
        try:
            async with asyncio.timeout(patience_s):
                await client.stream(self.http, self.proxies[request.order], _body(request), keep)
            end = "complete"
        except TimeoutError:
            end = "hung" if request.abort_after_s is None else "aborted"
        except (PdkvError, aiohttp.ClientError, OSError) as error:
            end, reason = "failed", f"{error}" or type(error).__name__
        return Result(request, end, seen.token_ids, seen.sent_at, time.time(), reason, seen.transfer_id)


def _body(request: Request) -> dict[str, object]:
    return {
        "prompt": list(request.prompt.token_ids), "max_tokens": request.num_tokens, "temperature": 0,
        "ignore_eos": True, "cache_salt": request.cache_salt,
    }  # fmt: skip
