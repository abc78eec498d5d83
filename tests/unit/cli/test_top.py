"""`pdkv top` over servers that show what engines show: what it says of them, and of those that show nothing."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from rich.console import Console

from pdkv_connector.cli import top
from pdkv_connector.cli.engine_view import EngineView
from pdkv_connector.cli.scrape import base_url, parse
from pdkv_connector.cli.top_table import WIDE
from pdkv_connector.errors import PdkvError
from pdkv_connector.telemetry.metrics import METRICS, Kind

NOWHERE = Path("/nowhere/engines.txt")
GIVEN = {"model_name": "m", "engine": "0"}


class Engine:
    """What one engine's `/metrics` shows; `add` counts, `set` sets, as the connector does."""

    def __init__(self, role: str, running: int = 0) -> None:
        self.registry = CollectorRegistry()
        kinds = {Kind.COUNTER: Counter, Kind.GAUGE: Gauge, Kind.HISTOGRAM: Histogram}
        self._metrics = {
            name: kinds[metric.kind](metric.full_name, "x", [*GIVEN, *metric.labels], registry=self.registry)
            for name, metric in METRICS.items()
        }
        for name, value in (
            ("num_requests_running", running),
            ("num_requests_waiting", 3),
            ("kv_cache_usage_perc", 0.25),
        ):
            Gauge(f"vllm:{name}", "x", [*GIVEN], registry=self.registry).labels(*GIVEN.values()).set(value)
        self.set("info", 1, role, "0.1.0")

    def set(self, name: str, value: float, *labels: str) -> None:
        self._metrics[name].labels(*GIVEN.values(), *labels).set(value)

    def add(self, name: str, value: float, *labels: str) -> None:
        self._metrics[name].labels(*GIVEN.values(), *labels).inc(value)

    def observe(self, name: str, seconds: float) -> None:
        self._metrics[name].labels(*GIVEN.values()).observe(seconds)

    @property
    def text(self) -> str:
        return generate_latest(self.registry).decode()


@contextmanager
def serving(*pages: Engine | str) -> Iterator[list[str]]:
    """URLs of servers whose `/metrics` are these; an int-like text is the status of an empty answer."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start(page: Engine | str) -> str:
        async def answer(_: web.Request) -> web.Response:
            if isinstance(page, str):
                return web.Response(status=int(page)) if page.isdigit() else web.Response(text=page)
            return web.Response(text=page.text)

        app = web.Application()
        app.router.add_get("/metrics", answer)
        runners.append(web.AppRunner(app, shutdown_timeout=0.1))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runners[-1].addresses[0][1]}"

    try:
        yield [asyncio.run_coroutine_threadsafe(start(page), loop).result(20) for page in pages]
    finally:
        for runner in runners:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def shown(urls: list[str], width: int = WIDE) -> tuple[bool, str]:
    out = io.StringIO()
    passed = top.run(urls, NOWHERE, 0.2, True, Console(file=out, width=width, highlight=False))
    return passed, out.getvalue()


def row(text: str, url: str, number: int = 0) -> list[str]:
    """Cells of an engine's row in one of the tables."""
    rows = [line.split() for line in text.splitlines() if line.startswith(url.partition("://")[2])]
    return rows[number]


@pytest.fixture
def prefill() -> Engine:
    made = Engine("kv_producer", running=2)
    made.set("backlog_bytes", 3e6, "0")
    made.set("backlog_bytes", 4e6, "1")
    made.set("leases", 5)
    made.set("compression_ratio", 1.5, "sent")
    made.add("transfers", 9, "producer", "delivered")
    made.add("transfers", 2, "producer", "lease_expired")
    made.observe("exposed_seconds", 0.25)
    made.add("refusals", 4, "producer", "handshake", "incompatible")
    made.set("goodput_bytes_per_second", 12.5e6, "0", "d rank 0")
    made.set("codec", 1, "0", "d rank 0", "split", "carries_most")
    made.set("codec", 0, "0", "gone rank 0", "raw", "wire_unknown")
    return made


@pytest.fixture
def decode() -> Engine:
    made = Engine("kv_consumer")
    made.set("reserved_tokens", 4597)
    made.add("recomputes", 1, "no_prefill")
    made.add("requests_without_transfer", 6, "no_params")
    return made


def test_a_pair_in_one_wide_table(prefill: Engine, decode: Engine) -> None:
    with serving(prefill, decode) as urls:
        passed, text = shown(urls)
    assert passed
    # run wait used out ratio backlog leases transfers not-delivered exposed again refused
    assert row(text, urls[0])[1:] == ["P", "2", "3", "25%", "0.0", "1.50", "7.0", "5", "9", "2", "0.25", "0", "4"]
    # run wait used in reserved transfers not-delivered damaged recomputed refused
    assert row(text, urls[1])[1:] == ["D", "0", "3", "25%", "0.0", "4,597", "0", "0", "0", "1", "0"]
    assert row(text, urls[0], 1)[1:] == ["d", "rank", "0", "12.5", "split", "carries", "most"]
    assert "gone rank 0" not in text
    for told in (
        "not delivered: lease expired 2", "refusals: handshake incompatible 4", "recomputed: no prefill 1",
        "requests without transfer: no params 6",
    ):  # fmt: skip
        assert told in text


@pytest.mark.parametrize("width", [80, 160])
def test_it_fits_the_terminal(prefill: Engine, decode: Engine, width: int) -> None:
    with serving(prefill, decode) as urls:
        _, text = shown(urls, width)
    assert max(map(len, text.splitlines())) <= width
    table = [line for line in text.splitlines() if line.startswith(urls[0].partition("://")[2])]
    assert not any("…" in line for line in table)
    numbers = [cell for line in table for cell in line.split()]
    assert {"7.0", "5", "9", "2", "0.25", "4", "12.5"} <= {*numbers}


def test_rates_are_over_the_time_between_looks(prefill: Engine) -> None:
    view = EngineView("http://h:1")
    for at, kv_bytes in ((0.0, 0), (4.0, 8e6), (8.0, 0), (12.0, 8e6), (20.0, 0)):
        prefill.add("sent_kv_bytes", kv_bytes)
        view.see(parse(prefill.text, at))
        if at == 0.0:
            assert view.rate("sent_kv_bytes") is None
        if at == 8.0:
            assert view.rate("sent_kv_bytes") == 1e6
    assert view.rate("sent_kv_bytes") == pytest.approx(8e6 / 12), "what is older than the window does not count"


def test_an_engine_that_is_down_is_shown_beside_the_others(decode: Engine) -> None:
    with serving("") as gone:
        pass
    with serving(decode) as urls:
        passed, text = shown([*gone, *urls])
    assert not passed
    assert row(text, gone[0])[1:] == ["down"]
    assert row(text, urls[0])[1] == "D"
    assert "2 engines, 1 down" in text
    assert f"{gone[0].partition('://')[2]} cannot be reached: Connection refused" in text


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("404", "answers 404 to GET /metrics: is it a vLLM server?"),
        ("vllm:x 1\n", "shows no metrics of PDKVConnector"),
        ("<html>\n<b>x</b> {\n", "not in the format of Prometheus"),
    ],
)
def test_other_servers_are_named_for_what_they_are(page: str, fault: str) -> None:
    with serving(page) as urls:
        passed, text = shown(urls, 200)
    assert not passed
    assert fault in text


@pytest.mark.parametrize("text", ["localhost:8100", "http://", "ftp://h:1", "http://h:99999", "http://h:1/v1", "h"])
def test_what_is_no_url_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(PdkvError, match=r"is not the URL of a server: write it like http://HOST:8100"):
        base_url(text)


def test_a_url_may_end_as_people_copy_it() -> None:
    assert {base_url(f"http://h:8100{end}") for end in ("", "/", "/metrics")} == {"http://h:8100"}


def test_without_urls_it_looks_for_the_demo(decode: Engine, tmp_path: Path) -> None:
    with pytest.raises(PdkvError, match=r"which engines\? .*nowhere/engines.txt, which is not there"):
        top.run([], NOWHERE, 0.2, True, Console())
    with serving(decode) as urls:
        (tmp_path / "engines.txt").write_text("\n".join(urls))
        assert top.run([], tmp_path / "engines.txt", 0.2, True, Console(file=io.StringIO()))


def test_a_restart_starts_the_rates_anew() -> None:
    view = EngineView("http://h:1")
    for at, started, kv_bytes in ((0.0, 1, 9e6), (2.0, 2, 1e6)):
        engine = Engine("kv_producer")
        Gauge("process_start_time_seconds", "x", registry=engine.registry).set(started)
        engine.add("sent_kv_bytes", kv_bytes)
        view.see(parse(engine.text, at))
    assert view.rate("sent_kv_bytes") is None


def read_until(terminal: int, words: str) -> str:
    """What the terminal shows, up to `words`."""
    shown = ""
    while words not in shown:
        shown += os.read(terminal, 65536).decode(errors="replace")
    return shown


def drain(terminal: int) -> None:
    """Read until nobody writes to the terminal any more, which shows as an error."""
    with contextlib.suppress(OSError):
        while os.read(terminal, 65536):
            pass


def test_in_a_terminal_it_goes_on_when_an_engine_goes_and_ends_with_ctrl_c(decode: Engine) -> None:
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    with serving(decode) as urls:
        # Where tests run in the background Ctrl-C may be ignored, and that is inherited.
        heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        code = f"{heed}; from pdkv_connector.cli.main import app; app(['top', {urls[0]!r}, '--interval', '0.2'])"
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(inside)  # so that reading ends when the child does
        try:
            read_until(terminal, "4,597")
            decode.set("reserved_tokens", 12345)
            read_until(terminal, "12,345")
        except BaseException:
            child.kill()
            raise
    try:
        read_until(terminal, "cannot be reached: Connection refused")
        child.send_signal(signal.SIGINT)
        drain(terminal)  # a child whose terminal nobody reads cannot end
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
        os.close(terminal)
