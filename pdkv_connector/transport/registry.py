"""Transports by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pdkv_connector.errors import TransportError
from pdkv_connector.transport.base import WRITE_LIMIT_S, Transport


def _loopback(backend: str, params: Mapping[str, str], _: float) -> Transport:
    from pdkv_connector.transport.loopback import LoopbackTransport

    if backend or params:
        raise TransportError(f"transport 'loopback' takes no backend and no params, got {backend!r} and {dict(params)}")
    return LoopbackTransport()


def _nixl(backend: str, params: Mapping[str, str], write_limit_s: float) -> Transport:
    from pdkv_connector.transport.nixl import NixlTransport

    return NixlTransport(backend or "UCX", params, write_limit_s)


_FACTORIES: dict[str, Callable[[str, Mapping[str, str], float], Transport]] = {"loopback": _loopback, "nixl": _nixl}


def open_transport(
    name: str, backend: str = "", params: Mapping[str, str] | None = None, write_limit_s: float = WRITE_LIMIT_S
) -> Transport:
    """Open transport `name`; an empty `backend` takes its default. Raises TransportError for an unknown name.

    A write to a peer that stands still has ended, badly, after at most twice `write_limit_s`.
    """
    try:
        factory = _FACTORIES[name]
    except KeyError:
        raise TransportError(f"unknown transport {name!r}: choose one of {', '.join(sorted(_FACTORIES))}") from None
    return factory(backend, params or {}, write_limit_s)
