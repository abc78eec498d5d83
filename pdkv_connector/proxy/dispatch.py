"""One client request over two engines: both at once, one after the other, or the decode engine alone."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pdkv_connector.proxy import bodies
from pdkv_connector.proxy.bodies import Body
from pdkv_connector.proxy.counters import Counters
from pdkv_connector.proxy.failures import RequestFailed
from pdkv_connector.proxy.fleet import Fleet, Server
from pdkv_connector.proxy.upstream import Answer, Upstream

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """What the client asked: `path` is the OpenAI path, `headers` those that pass through."""

    path: str
    body: Body
    headers: Mapping[str, str]

    @property
    def chat(self) -> bool:
        return self.path.endswith("/chat/completions")


class Dispatcher:
    """Runs calls; raises RequestFailed with both legs closed, returns an Answer with its first bytes at hand."""

    def __init__(
        self,
        fleet: Fleet,
        upstream: Upstream,
        counters: Counters,
        *,
        sequential: bool,
        on_lost: Callable[[Server], None],
    ) -> None:
        self._fleet = fleet
        self._upstream = upstream
        self._counters = counters
        self._sequential = sequential
        self._on_lost = on_lost
        self._finishing: set[asyncio.Task[Body]] = set()

    def kind(self, call: Call) -> str:
        """`local`, `sequential` or `concurrent`."""
        if reason := bodies.local_reason(call.body, call.chat):
            self._counters.add("local_prefill_total", reason=reason)
            return "local"
        return "sequential" if self._sequential else "concurrent"

    async def run(self, kind: str, call: Call) -> Answer:
        """Carry out `call` in the given kind of dispatch."""
        decode = self._fleet.pick("decode")
        if kind == "local":
            return await self._decode(decode, call, None)
        prefill = self._fleet.pick("prefill")
        if kind == "sequential":
            return await self._one_then_the_other(prefill, decode, call)
        return await self._both_at_once(prefill, decode, call)

    async def close(self) -> None:
        """Abort prefill legs that are still finishing."""
        for task in self._finishing:
            task.cancel()
        await asyncio.gather(*self._finishing, return_exceptions=True)

    async def _one_then_the_other(self, prefill: Server, decode: Server, call: Call) -> Answer:
        answer = await self._prefill(prefill, call, bodies.STOCK_PREFILL_PARAMS)
        params = answer.get("kv_transfer_params")
        if params is None:
            self._counters.add("local_prefill_total", reason="no_transfer_params")
        return await self._decode(decode, call, params)

    async def _both_at_once(self, prefill: Server, decode: Server, call: Call) -> Answer:
        probed = prefill.probed  # The server may be lost, and this forgotten, before the legs have begun.
        assert probed is not None, "a healthy prefill server has been probed"
        transfer_id = uuid.uuid4().hex
        ask_prefill = self._prefill_as(probed.get("remote_engine_id"), prefill, call, transfer_id)
        ask_decode = self._decode(decode, call, bodies.concurrent_decode_params(transfer_id, probed))
        legs = (asyncio.create_task(ask_prefill), asyncio.create_task(ask_decode))
        try:
            answer = await _first_bytes(*legs)
        except BaseException:
            await _abort(*legs)
            raise
        self._let_finish(legs[0])
        answer.transfer_id = transfer_id
        return answer

    def _let_finish(self, prefill: asyncio.Task[Body]) -> None:
        # With its first bytes the decode engine has all the KV it needs: from here on the prefill leg can only end.
        self._finishing.add(prefill)
        prefill.add_done_callback(self._finished)

    def _finished(self, prefill: asyncio.Task[Body]) -> None:
        self._finishing.discard(prefill)
        if not prefill.cancelled() and (error := prefill.exception()):
            log.warning("prefill leg failed after its request was being answered: %s", error)

    async def _prefill(self, server: Server, call: Call, params: Body) -> Body:
        body = bodies.prefill_body(call.body, params, call.chat)
        try:
            return await self._upstream.prefill(server, call.path, body, call.headers)
        except RequestFailed as failure:
            raise self.note(server, failure) from failure.__cause__

    async def _prefill_as(self, expected: object, server: Server, call: Call, transfer_id: str) -> Body:
        """The prefill leg, refused when another engine answered than the one the decode engine was told of."""
        answer = await self._prefill(server, call, bodies.concurrent_prefill_params(transfer_id))
        actual = (answer.get("kv_transfer_params") or {}).get("remote_engine_id", expected)
        if actual != expected:
            message = f"prefill server {server.url} was restarted (engine {expected} is now {actual}): send it again"
            raise self.note(server, RequestFailed(502, message, server=server.url, kind="restarted"))
        return answer

    async def _decode(self, server: Server, call: Call, params: Body | None) -> Answer:
        try:
            body = bodies.decode_body(call.body, params)
            return await self._upstream.decode(server, call.path, body, call.headers)
        except RequestFailed as failure:
            raise self.note(server, failure) from failure.__cause__

    def note(self, server: Server, failure: RequestFailed) -> RequestFailed:
        """Count `failure`; a server that is in doubt gets no requests until it has been checked."""
        self._counters.add("upstream_failures_total", role=server.role, server=server.url, kind=failure.kind)
        if failure.unreachable:
            server.lose(failure.message)
            self._on_lost(server)
        return failure


async def _first_bytes(prefill: asyncio.Task[Body], decode: asyncio.Task[Answer]) -> Answer:
    """Wait for the decode leg; a prefill leg that fails first, or at the same time, is the cause to be told."""
    while not decode.done():
        await asyncio.wait({decode} if prefill.done() else {decode, prefill}, return_when=asyncio.FIRST_COMPLETED)
        if prefill.done() and not decode.done():
            prefill.result()
    if decode.exception() and prefill.done():
        prefill.result()
    return decode.result()


async def _abort(prefill: asyncio.Task[Body], decode: asyncio.Task[Answer]) -> None:
    prefill.cancel()
    decode.cancel()
    await asyncio.gather(prefill, decode, return_exceptions=True)
    if not decode.cancelled() and not decode.exception():
        decode.result().close()
