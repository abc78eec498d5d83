"""Completions as a client sees them: tokens, and when they came."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from pdkv_connector.errors import PdkvError

LIMIT_S = 600.0


@dataclass
class Reply:
    """A streamed completion; times are unix seconds."""

    sent_at: float
    first_token_at: float | None = None
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    transfer_id: str = ""

    @property
    def ttft_s(self) -> float:
        """Time to the first token in seconds. Raises PdkvError when there was none."""
        if self.first_token_at is None:
            raise PdkvError("the server sent no token: see its log")
        return self.first_token_at - self.sent_at


async def stream(
    http: aiohttp.ClientSession,
    url: str,
    body: Mapping[str, Any],
    on_token: Callable[[Reply], object] = lambda _: None,
) -> Reply:
    """POST a completion as a stream and return all of it. Raises PdkvError, naming `url`, when the server fails it."""
    wanted = {**body, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    reply = Reply(sent_at=time.time())
    async with _post(http, url, wanted) as response:
        reply.transfer_id = response.headers.get("X-Pdkv-Transfer-Id", "")
        async for event in _events(response):
            if "error" in event:
                raise PdkvError(f"{url} failed a completion: {event['error'].get('message', event['error'])}")
            _take(reply, event)
            on_token(reply)
    return reply


async def complete(http: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """POST a completion and return the whole JSON answer. Raises PdkvError, naming `url`, when the server fails it."""
    async with _post(http, url, {**body, "return_token_ids": True}) as response:
        answer = await response.json()
    assert isinstance(answer, dict)
    return answer


class _post:  # noqa: N801 - used like the function it wraps
    """`async with` over a POST to `url`/v1/completions, with every failure as a PdkvError."""

    def __init__(self, http: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> None:
        self._url = url
        self._request = http.post(f"{url}/v1/completions", json=body, timeout=aiohttp.ClientTimeout(LIMIT_S))

    async def __aenter__(self) -> aiohttp.ClientResponse:
        try:
            response = await self._request.__aenter__()
            if response.status == 200:
                return response
            text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise PdkvError(f"{self._url} cannot be asked: {str(error) or type(error).__name__}") from None
        raise PdkvError(f"{self._url} answered {response.status}: {_message(text)}")

    async def __aexit__(self, *error: Any) -> None:
        await self._request.__aexit__(*error)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        text = line.decode().strip()
        if text.startswith("data:") and not text.endswith("[DONE]"):
            yield json.loads(text.removeprefix("data:"))


def _take(reply: Reply, event: Mapping[str, Any]) -> None:
    for choice in event.get("choices", []):
        new = choice.get("token_ids") or []
        if new and reply.first_token_at is None:
            reply.first_token_at = time.time()
        reply.token_ids += new
    if usage := event.get("usage"):
        reply.prompt_tokens = usage["prompt_tokens"]


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300].strip()
