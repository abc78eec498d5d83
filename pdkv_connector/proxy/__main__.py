"""`python -m pdkv_connector.proxy --prefill URL... --decode URL...`."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import signal
import socket
import sys
from collections.abc import Sequence

from pdkv_connector.errors import ConfigError, PdkvError
from pdkv_connector.proxy.config import ProxyConfig


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted. Returns the exit code: 0, or 2 after one line on stderr that says what to change."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    try:
        if importlib.util.find_spec("aiohttp") is None:
            raise ConfigError("the proxy needs aiohttp: pip install 'pdkv-connector[proxy]'")
        config = _config(options)
        asyncio.run(_serve(config, _listening_socket(config.host, config.port)))
    except PdkvError as error:
        print(f"pdkv proxy: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        pass
    return 0


async def _serve(config: ProxyConfig, listening: socket.socket) -> None:
    from aiohttp import web

    from pdkv_connector.proxy.app import Proxy

    runner = web.AppRunner(Proxy(config).app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        order = "prefill, then decode" if config.sequential else "prefill and decode at once"
        logging.getLogger(__name__).info("listening on http://%s:%d (%s)", *listening.getsockname()[:2], order)
        await _told_to_stop()
    finally:
        await runner.cleanup()


async def _told_to_stop() -> None:
    """Wait for SIGINT or SIGTERM, also where a shell started us in the background and had SIGINT ignored."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def _listening_socket(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=1024)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another --host or --port"
        ) from None


def _config(options: argparse.Namespace) -> ProxyConfig:
    return ProxyConfig(
        prefill=tuple(options.prefill),
        decode=tuple(options.decode),
        host=options.host,
        port=options.port,
        sequential=options.sequential,
        max_body_bytes=options.max_body_mib * 2**20,
        prefill_timeout_s=options.timeout,
        decode_timeout_s=options.timeout,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pdkv_connector.proxy", description=__doc__)
    parser.add_argument("--prefill", nargs="+", required=True, metavar="URL", help="prefill servers")
    parser.add_argument("--decode", nargs="+", required=True, metavar="URL", help="decode servers")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free port")
    parser.add_argument("--sequential", action="store_true", help="prefill first, decode with its answer (stock flow)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="wait for a server, seconds")
    parser.add_argument("--max-body-mib", type=int, default=64, metavar="MIB", help="largest request body")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
