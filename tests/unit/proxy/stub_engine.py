"""An OpenAI server without a model: it speaks the protocol over real sockets and does as it is told."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientSession, web
from multidict import CIMultiDict

from pdkv_connector.proxy.app import Proxy
from pdkv_connector.proxy.config import ProxyConfig

WORDS = ["one", " two", " three"]


@dataclass
class StubEngine:
    """`gate` holds generation back until it is set; `answer_status` makes every generation an error.

    After `break_after` words a stream is cut off, after `pause_after` words it stops for ever; `engine_id` is told to
    probes and with every prefill answer.
    """

    role: str
    engine_id: str = "engine-1"
    answer_status: int = 200
    answer_text: str = '{"error": {"message": "prompt is too long", "type": "BadRequestError", "code": 400}}'
    break_after: int | None = None
    pause_after: int | None = None
    answers_probes: bool = True
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[CIMultiDict[str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    probes: int = 0
    sick: bool = False
    url: str = ""

    def __post_init__(self) -> None:
        self.gate.set()

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator["StubEngine"]:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    @property
    def params(self) -> dict[str, Any]:
        ours = {"engine_id": self.engine_id, "endpoints": ["127.0.0.1:7000"], "tp_size": 1, "pp_size": 1}
        stock = {"remote_engine_id": self.engine_id, "remote_host": "127.0.0.1", "remote_port": 7000, "tp_size": 1}
        return {**stock, "pdkv": ours}

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.sick else 200)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": f"model-of-{self.role}"}]})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if (body.get("kv_transfer_params") or {}).get("pdkv", {}).get("probe"):
            self.probes += 1
            return web.json_response(
                {"choices": [], "kv_transfer_params": self.params if self.answers_probes else None}
            )
        self.bodies.append(body)
        self.headers.append(CIMultiDict(request.headers))
        self.paths.append(request.path)
        self.asked.set()
        try:
            return await self._answer(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted.set()
            raise

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not body.get("stream"):
            await self.gate.wait()
            if self.answer_status != 200:
                return web.Response(status=self.answer_status, text=self.answer_text, content_type="application/json")
            text = {"choices": [{"text": "".join(WORDS)}], "kv_transfer_params": self.params}
            return web.json_response(text)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)  # Like a real engine: status 200 goes out before there is a token.
        await self.gate.wait()
        for index, word in enumerate(WORDS):
            if index == self.pause_after:
                await asyncio.Event().wait()
            if index == self.break_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(f"data: {json.dumps({'choices': [{'text': word}]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@dataclass
class Rig:
    """A running proxy and a client session; `post` is a client's request."""

    proxy: Proxy
    url: str
    http: ClientSession

    async def post(self, body: dict[str, Any] | bytes, path: str = "/v1/completions") -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(self.url + path, data=data) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(self.url + path) as response:
            return response.status, await response.text()


@asynccontextmanager
async def proxy_over(prefill: list[str], decode: list[str], **settings: Any) -> AsyncIterator[Rig]:
    """A proxy over these URLs, checking health often unless told otherwise."""
    quick: dict[str, Any] = {"health_interval_s": 0.05, **settings}
    proxy = Proxy(ProxyConfig(prefill=tuple(prefill), decode=tuple(decode), **quick))
    runner = web.AppRunner(proxy.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with ClientSession() as http:
            yield Rig(proxy, f"http://127.0.0.1:{runner.addresses[0][1]}", http)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(prefill: StubEngine, decode: StubEngine, **settings: Any) -> AsyncIterator[Rig]:
    """A proxy over two stub engines, all running."""
    async with prefill.running(), decode.running(), proxy_over([prefill.url], [decode.url], **settings) as rig:
        yield rig


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until `condition()` is true."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)
