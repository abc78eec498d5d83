"""What can go wrong between client and engines, as the HTTP answer the client gets.

status   when
4xx      an engine refused the request: its own status and message pass through
400      the client's body is not a JSON object       413   it is larger than the proxy takes
502      an engine could not be reached, hung up, or answered 5xx: the message names the server
503      no healthy prefill or no healthy decode server
504      an engine did not answer in time: the message names the server
"""

from __future__ import annotations

import json

from aiohttp import ClientConnectorError, ClientError, web

TYPES = {400: "BadRequestError", 404: "NotFoundError", 413: "PayloadTooLarge"}


class RequestFailed(Exception):
    """One request failed with HTTP `status`; `body` is an engine's own JSON error, to be passed on as it is."""

    def __init__(self, status: int, message: str, *, server: str = "", kind: str = "", body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.server = server
        self.kind = kind
        self.body = body

    @property
    def unreachable(self) -> bool:
        """True when the server itself, and not this request, is in doubt."""
        return self.kind in ("connect", "disconnect", "restarted")

    def payload(self) -> bytes:
        """The JSON error in the shape OpenAI clients read."""
        if self.body:
            return self.body
        kind = TYPES.get(self.status, "UpstreamError")
        error = {"message": self.message, "type": kind, "param": None, "code": self.status}
        return json.dumps({"error": error}).encode()

    def response(self) -> web.Response:
        """The whole answer, where nothing has been sent to the client yet."""
        return web.Response(status=self.status, body=self.payload(), content_type="application/json")

    def event(self) -> bytes:
        """The error as the last event of a stream that has begun."""
        return b"data: " + self.payload().replace(b"\n", b" ") + b"\n\n"


def from_status(role: str, server: str, status: int, body: bytes) -> RequestFailed:
    """An engine answered with an error: 4xx is the client's, 5xx the engine's."""
    if 400 <= status < 500:
        own = body if _is_json_object(body) else b""
        return RequestFailed(status, _text(body), server=server, kind="refused", body=own)
    message = f"{role} server {server} answered {status}: {_text(body)}"
    return RequestFailed(502, message, server=server, kind="status")


def from_exception(role: str, server: str, error: Exception, timeout_s: float) -> RequestFailed:
    """A connection-level error or time-out, translated."""
    if isinstance(error, TimeoutError):  # aiohttp's time-outs are; a connect time-out is one too
        message = f"{role} server {server} did not answer within {timeout_s:g} s: see its log, or raise the time-out"
        return RequestFailed(504, message, server=server, kind="timeout")
    if isinstance(error, ClientConnectorError):
        message = f"{role} server {server} cannot be reached: {error.strerror or error}"
        return RequestFailed(502, message, server=server, kind="connect")
    assert isinstance(error, ClientError | ConnectionError), error
    message = f"{role} server {server} hung up before its answer was complete: {type(error).__name__}"
    return RequestFailed(502, message, server=server, kind="disconnect")


def none_healthy(role: str, reasons: list[str]) -> RequestFailed:
    """503 that says why each server of the role is out."""
    return RequestFailed(503, f"no healthy {role} server: {'; '.join(reasons)}", kind="none_healthy")


def _text(body: bytes) -> str:
    return body[:500].decode("utf-8", "replace").strip() or "(empty answer)"


def _is_json_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False
