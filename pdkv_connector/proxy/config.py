"""Settings of the proxy, checked before anything is started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from pdkv_connector.errors import ConfigError


@dataclass(frozen=True)
class ProxyConfig:
    """`prefill` and `decode` are base URLs; every duration is in seconds.

    `prefill_timeout_s` bounds the whole prefill leg; `decode_timeout_s` bounds the wait for the next byte of the decode
    leg, so that a long stream may take as long as it likes.
    Raises ConfigError for URLs that cannot work, in one line that names the URL.
    """

    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    sequential: bool = False
    max_body_bytes: int = 64 * 2**20
    health_interval_s: float = 2.0
    health_timeout_s: float = 5.0
    probe_timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    prefill_timeout_s: float = 600.0
    decode_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefill", _base_urls("--prefill", self.prefill))
        object.__setattr__(self, "decode", _base_urls("--decode", self.decode))
        if both := set(self.prefill) & set(self.decode):
            raise ConfigError(f"{min(both)} is given as --prefill and as --decode: use two servers")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port {self.port} is not a port: use 0 (any free one) to 65535")


def _base_urls(flag: str, urls: Iterable[str]) -> tuple[str, ...]:
    checked = tuple(_base_url(flag, url) for url in urls)
    if not checked:
        raise ConfigError(f"no {flag} URL: give at least one, as {flag} http://HOST:PORT")
    if len(set(checked)) < len(checked):
        raise ConfigError(f"{flag} names one server twice ({', '.join(checked)}): name each once")
    return checked


def _base_url(flag: str, url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{flag} {url!r} is not a URL: write http://HOST:PORT")
    try:
        _ = parts.port
    except ValueError:
        raise ConfigError(f"{flag} {url!r} has a port out of range: write http://HOST:PORT") from None
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"
