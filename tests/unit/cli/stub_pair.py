"""A prefill and a decode server without a model, in a thread of their own: enough protocol for `pdkv verify`."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PROBE_ANSWER = {
    "remote_engine_id": "e1",
    "remote_host": "127.0.0.1",
    "remote_port": 7000,
    "tp_size": 1,
    "pdkv": {"engine_id": "e1", "endpoints": ["127.0.0.1:7000"], "tp_size": 1, "pp_size": 1},
}


@dataclass
class StubPair:
    """`digests` are the decode server's, `prefill_digests` its producer's; None leaves them out."""

    digests: list[str] | None = field(default_factory=lambda: ["aa", "bb"])
    prefill_digests: list[str] | None = field(default_factory=lambda: ["aa", "bb"])
    loads: bool = True
    has_metrics: bool = True
    transferred_tokens: tuple[int, ...] = (1, 2, 3)
    prefill_status: int = 200
    answers_probe: bool = True
    loaded_tokens: int = 0
    prompts: list[str] = field(default_factory=list)
    salts: list[str] = field(default_factory=list)

    async def prefill(self, request: web.Request) -> web.Response:
        body = await request.json()
        params = body["kv_transfer_params"]
        if params["pdkv"].get("probe"):
            return _answer([9], PROBE_ANSWER if self.answers_probe else None)
        if self.prefill_status != 200:
            return web.json_response({"error": {"message": "engine is ill"}}, status=self.prefill_status)
        return _answer([9], None)

    async def decode(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.prompts.append(body["prompt"])
        self.salts.append(body["cache_salt"])
        params = body.get("kv_transfer_params")
        if params is None:
            return _answer([1, 2, 3], None)
        if self.prefill_status != 200:
            await asyncio.Event().wait()
        self.loaded_tokens += 10 if self.loads else 0
        both = {"digests": self.digests, "prefill_digests": self.prefill_digests}
        ours = {side: digests for side, digests in both.items() if digests is not None}
        return _answer(list(self.transferred_tokens), {"pdkv": ours} if ours and self.loads else None)

    async def metrics(self, _: web.Request) -> web.Response:
        sample = f'vllm:external_prefix_cache_hits_total{{engine="0",model_name="m"}} {float(self.loaded_tokens)}\n'
        return web.Response(text=sample if self.has_metrics else "")


def _answer(token_ids: list[int], params: dict[str, Any] | None) -> web.Response:
    choices = [{"token_ids": token_ids, "text": "x"}]
    return web.json_response({"choices": choices, "usage": {"prompt_tokens": 11}, "kv_transfer_params": params})


@contextmanager
def running(pair: StubPair) -> Iterator[tuple[str, str]]:
    """URLs of the prefill and of the decode server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[list[web.AppRunner], list[str]]:
        runners, urls = [], []
        for handler in (pair.prefill, pair.decode):
            app = web.Application()
            app.router.add_post("/v1/completions", handler)
            app.router.add_get("/metrics", pair.metrics)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            runners.append(runner)
            urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        return runners, urls

    runners, urls = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    try:
        yield urls[0], urls[1]
    finally:
        for runner in runners:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()
