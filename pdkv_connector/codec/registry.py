"""Codecs by name. A factory imports its codec's libraries only when it is called."""

from __future__ import annotations

from collections.abc import Callable

from pdkv_connector.codec.base import Codec
from pdkv_connector.errors import ConfigError


def _raw(device_type: str) -> Codec:
    if device_type == "cuda":
        from pdkv_connector.codec.raw_triton import TritonRawCodec

        return TritonRawCodec()
    from pdkv_connector.codec.raw import RawCodec

    return RawCodec()


FACTORIES: dict[str, Callable[[str], Codec]] = {"raw": _raw}
"""Name on the wire -> factory, which takes the torch device type of the KV (`cpu`, `cuda`)."""


def create_codec(name: str, device_type: str = "cpu") -> Codec:
    """The codec called `name` for KV on `device_type`. Raises ConfigError for a name or device nobody provides."""
    if device_type not in {"cpu", "cuda"}:
        raise ConfigError(f"no codec moves KV on device type {device_type!r}; use cpu or cuda")
    if name not in FACTORIES:
        raise ConfigError(f"unknown codec {name!r}; this build has {', '.join(sorted(FACTORIES))}")
    return FACTORIES[name](device_type)
