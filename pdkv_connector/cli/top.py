"""`pdkv top`: live engines and what moves between them, from their own `/metrics`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.live import Live

from pdkv_connector.cli.engine_view import EngineView
from pdkv_connector.cli.scrape import base_url, scrape
from pdkv_connector.cli.top_table import screen
from pdkv_connector.errors import PdkvError


def run(urls: Sequence[str], engines_file: Path, interval_s: float, once: bool, console: Console) -> bool:
    """Show the engines at `urls`, or those that `engines_file` lists, until interrupted.

    `once`: print one table, with rates over one interval; True when every engine answered.
    """
    engines = [EngineView(url) for url in dict.fromkeys(map(base_url, urls or _listed(engines_file)))]
    if once:
        return asyncio.run(_print_once(engines, interval_s, console))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_watch(engines, interval_s, console))
    return True


def _listed(engines_file: Path) -> list[str]:
    try:
        return engines_file.read_text().split()
    except OSError:
        raise PdkvError(
            f"which engines? pdkv top http://HOST:8100 http://HOST:8200; without URLs it shows those of a running "
            f"`pdkv demo`, listed in {engines_file}, which is not there"
        ) from None


async def _print_once(engines: Sequence[EngineView], interval_s: float, console: Console) -> bool:
    async with aiohttp.ClientSession() as http:
        await _look(http, engines)
        await asyncio.sleep(interval_s)
        await _look(http, engines)
    console.print(screen(engines, _head(engines, f"rates over {interval_s:g} s"), console.width))
    return not any(engine.fault for engine in engines)


async def _watch(engines: Sequence[EngineView], interval_s: float, console: Console) -> None:
    async with aiohttp.ClientSession() as http:
        await _look(http, engines)
        with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
            while True:
                shown = screen(engines, _head(engines, f"every {interval_s:g} s, Ctrl-C ends"), console.width)
                if console.is_terminal:
                    live.update(shown, refresh=True)
                else:
                    console.print(shown)
                await asyncio.sleep(interval_s)
                await _look(http, engines)


async def _look(http: aiohttp.ClientSession, engines: Sequence[EngineView]) -> None:
    for engine, look in zip(engines, await asyncio.gather(*(scrape(http, one.url) for one in engines)), strict=True):
        engine.see(look)


def _head(engines: Sequence[EngineView], how: str) -> str:
    num_down = sum(bool(engine.fault) for engine in engines)
    down = f", [bold red]{num_down} down[/]" if num_down else ""
    noun = "engine" if len(engines) == 1 else "engines"
    return f"[bold]pdkv top[/]  {time.strftime('%H:%M:%S')}  {len(engines)} {noun}{down}  [dim]{how}[/]"
