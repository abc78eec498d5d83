"""HTTP to one engine: the prefill leg, the decode leg and the probe. Every failure comes out as RequestFailed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from pdkv_connector.proxy.bodies import PROBE, Body
from pdkv_connector.proxy.config import ProxyConfig
from pdkv_connector.proxy.failures import RequestFailed, from_exception, from_status
from pdkv_connector.proxy.fleet import Server

CONNECTION_ERRORS = (aiohttp.ClientError, ConnectionError, TimeoutError)


class Answer:
    """A decode server's response whose first bytes are here; the rest is read as the client takes it."""

    def __init__(self, server: Server, response: aiohttp.ClientResponse, first: bytes, timeout_s: float) -> None:
        self.server = server
        self.transfer_id: str | None = None
        self.status = response.status
        self.content_type = response.headers.get("Content-Type", "application/json")
        self.streamed = _is_stream(response)
        self._response = response
        self._first = first
        self._timeout_s = timeout_s

    async def chunks(self) -> AsyncIterator[bytes]:
        """All bytes in order, as they come. Raises RequestFailed when the server breaks off."""
        yield self._first
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except CONNECTION_ERRORS as error:
            raise from_exception("decode", self.server.url, error, self._timeout_s) from error

    def close(self) -> None:
        """Drop the connection: an engine aborts a request whose client is gone. No-op after the last byte."""
        self._response.close()


class Upstream:
    """Talks to engines over one connection pool."""

    def __init__(self, session: aiohttp.ClientSession, config: ProxyConfig) -> None:
        self._session = session
        self._config = config

    async def prefill(self, server: Server, path: str, body: Body, headers: Mapping[str, str]) -> Body:
        """Run the prefill leg to its end and return the engine's whole answer."""
        timeout_s = self._config.prefill_timeout_s
        return await self._post_json(server, path, body, headers, timeout_s)

    async def probe(self, server: Server) -> Body:
        """Ask a prefill engine who and where it is; returns its `kv_transfer_params`."""
        answer = await self._post_json(server, "/v1/completions", PROBE, {}, self._config.probe_timeout_s)
        params = answer.get("kv_transfer_params")
        if not isinstance(params, dict) or not isinstance(params.get("pdkv"), dict):
            message = f"prefill server {server.url} does not answer a probe: does it run kv_connector PDKVConnector?"
            raise RequestFailed(502, message, server=server.url)
        return params

    async def healthy(self, server: Server) -> None:
        """Return when the server's /health says 200. Raises RequestFailed otherwise."""
        timeout_s = self._config.health_timeout_s
        try:
            async with self._session.get(f"{server.url}/health", timeout=self._timeout(timeout_s)) as response:
                if response.status != 200:
                    raise from_status(server.role, server.url, response.status, await response.read())
        except CONNECTION_ERRORS as error:
            raise from_exception(server.role, server.url, error, timeout_s) from error

    async def models(self, server: Server) -> tuple[int, bytes]:
        """The server's /v1/models, status and body."""
        timeout_s = self._config.health_timeout_s
        try:
            async with self._session.get(f"{server.url}/v1/models", timeout=self._timeout(timeout_s)) as response:
                return response.status, await response.read()
        except CONNECTION_ERRORS as error:
            raise from_exception(server.role, server.url, error, timeout_s) from error

    async def decode(self, server: Server, path: str, body: Body, headers: Mapping[str, str]) -> Answer:
        """Open the decode leg and wait for its first bytes: an engine sends status 200 of a stream long before them.

        An answer that is not a stream is complete when this returns, so that it can still be replaced by an error.
        """
        timeout_s = self._config.decode_timeout_s
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self._config.connect_timeout_s, sock_read=timeout_s)
        response = None
        try:
            response = await self._session.post(server.url + path, json=body, headers=headers, timeout=limits)
            if response.status >= 400:
                raise from_status("decode", server.url, response.status, await response.read())
            first = await (response.content.readany() if _is_stream(response) else response.read())
            return Answer(server, response, first, timeout_s)
        except BaseException as error:
            if response is not None:
                response.close()
            if isinstance(error, CONNECTION_ERRORS):
                raise from_exception("decode", server.url, error, timeout_s) from error
            raise

    async def _post_json(
        self, server: Server, path: str, body: Body, headers: Mapping[str, str], timeout_s: float
    ) -> Body:
        try:
            limits = self._timeout(timeout_s)
            async with self._session.post(server.url + path, json=body, headers=headers, timeout=limits) as response:
                text = await response.read()
                if response.status != 200:
                    raise from_status(server.role, server.url, response.status, text)
        except CONNECTION_ERRORS as error:
            raise from_exception(server.role, server.url, error, timeout_s) from error
        return _json_object(server, text)

    def _timeout(self, total_s: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=total_s, sock_connect=min(total_s, self._config.connect_timeout_s))


def _is_stream(response: aiohttp.ClientResponse) -> bool:
    return response.content_type == "text/event-stream"


def _json_object(server: Server, text: bytes) -> Body:
    try:
        answer: Any = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        message = f"{server.role} server {server.url} answered with something that is not a JSON object: {text[:80]!r}"
        raise RequestFailed(502, message, server=server.url, kind="status")
    return answer
