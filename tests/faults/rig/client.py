"""Requests as a client sends them, each a future."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import aiohttp

LIMIT_S = 200.0
NO_ANSWER = 0


@dataclass(frozen=True)
class Answer:
    """`status` is 0 where the connection broke; `body` is the JSON object, `seconds` from the request to its end."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]
    seconds: float

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the only choice. Raises AssertionError with the error of a failed request."""
        assert self.status == 200, self.error
        (choice,) = self.body["choices"]
        return list(choice["token_ids"])

    @property
    def error(self) -> str:
        """What the client is told; empty where all went well."""
        error = self.body.get("error") or {}
        return f"{self.status}: {error.get('message', error)}" if self.status != 200 else ""


Pending = Future[Answer]
"""A request on its way. `cancel()` closes its connection: the client leaves."""


class Client:
    """Sends requests from a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="client", daemon=True)
        self._thread.start()
        self._http: aiohttp.ClientSession = asyncio.run_coroutine_threadsafe(_open(), self._loop).result()

    def ask(self, url: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Pending:
        """POST one completion."""
        wanted = {"return_token_ids": True, **body}
        return asyncio.run_coroutine_threadsafe(self._ask(f"{url}/v1/completions", wanted, headers or {}), self._loop)

    async def _ask(self, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
        begun = time.monotonic()
        try:
            async with self._http.post(url, json=body, headers=headers) as response:
                answer = await response.json(content_type=None)
                return Answer(response.status, answer or {}, dict(response.headers), time.monotonic() - begun)
        except (aiohttp.ClientError, ConnectionError) as error:
            what = {"error": {"message": f"{type(error).__name__}: {error}"}}
            return Answer(NO_ANSWER, what, {}, time.monotonic() - begun)

    def close(self) -> None:
        """Leave everything that is still pending."""
        asyncio.run_coroutine_threadsafe(self._http.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _open() -> aiohttp.ClientSession:
    # No connection is used twice: one to a server that has been killed would be found dead by the next request.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=LIMIT_S))
