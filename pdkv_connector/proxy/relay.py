"""Brings a decode server's answer to the client, byte for byte."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from pdkv_connector.proxy.failures import RequestFailed
from pdkv_connector.proxy.fleet import Server
from pdkv_connector.proxy.upstream import Answer

TRANSFER_ID_HEADER = "X-Pdkv-Transfer-Id"
"""Tells the client under which name the logs and timelines of the engines know its transfer."""

Note = Callable[[Server, RequestFailed], object]


async def relay(request: web.Request, answer: Answer, note: Note) -> web.StreamResponse:
    """Send `answer`; whatever ends this early (client gone, server broken off) also ends the engine's request."""
    try:
        return await (_stream(request, answer, note) if answer.streamed else _whole(answer))
    finally:
        answer.close()


async def _whole(answer: Answer) -> web.Response:
    body = b"".join([chunk async for chunk in answer.chunks()])
    return web.Response(status=answer.status, body=body, headers=_headers(answer))


async def _stream(request: web.Request, answer: Answer, note: Note) -> web.StreamResponse:
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(status=answer.status, headers=_headers(answer) | headers)
    await response.prepare(request)
    try:
        async for chunk in answer.chunks():
            await response.write(chunk)
    except RequestFailed as failure:
        # The status line is long gone: OpenAI clients raise on an event that holds an error.
        note(answer.server, failure)
        await response.write(failure.event())
    await response.write_eof()
    return response


def _headers(answer: Answer) -> dict[str, str]:
    named = {TRANSFER_ID_HEADER: answer.transfer_id} if answer.transfer_id else {}
    return {"Content-Type": answer.content_type, **named}
