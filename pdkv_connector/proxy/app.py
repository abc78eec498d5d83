"""The proxy as an aiohttp application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
from aiohttp import web

from pdkv_connector.proxy.bodies import Body
from pdkv_connector.proxy.config import ProxyConfig
from pdkv_connector.proxy.counters import Counters
from pdkv_connector.proxy.dispatch import Call, Dispatcher
from pdkv_connector.proxy.failures import RequestFailed
from pdkv_connector.proxy.fleet import Fleet
from pdkv_connector.proxy.health import HealthMonitor
from pdkv_connector.proxy.relay import relay
from pdkv_connector.proxy.upstream import Upstream

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PASSED_HEADERS = ("Authorization", "X-Request-Id", "traceparent", "tracestate")

IDLE_CONNECTION_S = 2.0
"""Below the 5 s after which uvicorn closes idle connections, or a request could be written into a closing one."""


class Proxy:
    """Owns the fleet and answers HTTP; `app()` wires it up."""

    def __init__(self, config: ProxyConfig) -> None:
        self.config = config
        self.fleet = Fleet(config.prefill, config.decode)
        self.counters = Counters()

    def app(self) -> web.Application:
        """The application; run it with `handler_cancellation=True`, or clients that leave would not abort anything."""
        app = web.Application(client_max_size=self.config.max_body_bytes, middlewares=[_errors_as_json])
        app.cleanup_ctx.append(self._lifetime)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _lifetime(self, _: web.Application) -> AsyncIterator[None]:
        config = self.config
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=True) as session:
            self._upstream = Upstream(session, config)
            monitor = HealthMonitor(
                self.fleet.servers,
                self._upstream,
                interval_s=config.health_interval_s,
                probing=not config.sequential,
            )
            self._dispatcher = Dispatcher(
                self.fleet, self._upstream, self.counters, sequential=config.sequential, on_lost=monitor.check_soon
            )
            await monitor.start(wait_s=config.health_timeout_s)
            yield
            await asyncio.gather(monitor.stop(), self._dispatcher.close())

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.counters.in_flight += 1
        kind, status = "unread", 500
        try:
            headers = {name: request.headers[name] for name in PASSED_HEADERS if name in request.headers}
            call = Call(request.path, await _json_body(request), headers)
            kind = self._dispatcher.kind(call)
            response = await relay(request, await self._dispatcher.run(kind, call), self._dispatcher.note)
            status = response.status
            return response
        except RequestFailed as failure:
            status = failure.status
            return failure.response()
        except (asyncio.CancelledError, aiohttp.ClientConnectionResetError):
            status = 499
            self.counters.add("client_disconnects_total")
            raise
        finally:
            self.counters.in_flight -= 1
            self.counters.add("requests_total", dispatch=kind, status=status)

    async def _models(self, _: web.Request) -> web.Response:
        try:
            status, body = await self._upstream.models(self.fleet.pick("decode"))
        except RequestFailed as failure:
            return failure.response()
        return web.Response(status=status, body=body, content_type="application/json")

    async def _health(self, _: web.Request) -> web.Response:
        servers = [{"role": s.role, "url": s.url, "healthy": s.healthy, "fault": s.fault} for s in self.fleet.servers]
        ready = self.fleet.ready()
        return web.json_response({"ready": ready, "servers": servers}, status=200 if ready else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self.counters.text(self.fleet.servers))


async def _json_body(request: web.Request) -> Body:
    text = await request.read()
    try:
        body = json.loads(text)
    except ValueError as error:
        raise RequestFailed(400, f"the request body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestFailed(400, f"the request body is a JSON {type(body).__name__}: send an object")
    return body


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge as error:
        return RequestFailed(413, f"{error.text}: send less, or raise --max-body-mib").response()
    except web.HTTPException as error:
        return RequestFailed(error.status, f"{request.method} {request.path}: {error.reason}").response()
