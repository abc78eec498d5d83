"""Codecs by name. A factory imports its codec's libraries only when it is called."""

from __future__ import annotations

from collections.abc import Callable

from pdkv_connector.codec.base import Codec
from pdkv_connector.errors import ConfigError

Factory = Callable[[str, int], Codec]


def _raw(device_type: str, num_threads: int) -> Codec:
    if device_type == "cuda":
        from pdkv_connector.codec.raw_triton import TritonRawCodec

        return TritonRawCodec()
    from pdkv_connector.codec.raw import RawCodec

    return RawCodec()


def _cascade(name: str, width: int) -> Factory:
    def create(device_type: str, num_threads: int) -> Codec:
        if device_type == "cuda":
            from pdkv_connector.codec.cascade_triton import TritonCascadeCodec

            return TritonCascadeCodec(name, width)
        from pdkv_connector.codec.coded import CascadeCodec

        return CascadeCodec(name, width, num_threads)

    return create


FACTORIES: dict[str, Factory] = {"raw": _raw, "split": _cascade("split", 2), "pack4": _cascade("pack4", 4)}
"""Name on the wire -> factory of torch device type (`cpu`, `cuda`) and, on the CPU, threads."""


def create_codec(name: str, device_type: str = "cpu", num_threads: int = 1) -> Codec:
    """The codec called `name` for KV on `device_type`. Raises ConfigError for a name or device nobody provides."""
    if device_type not in {"cpu", "cuda"}:
        raise ConfigError(f"no codec moves KV on device type {device_type!r}; use cpu or cuda")
    if name not in FACTORIES:
        raise ConfigError(f"unknown codec {name!r}; this build has {', '.join(sorted(FACTORIES))}")
    return FACTORIES[name](device_type, num_threads)
