"""`python -m pdkv_connector.proxy` as an operator meets it."""

import asyncio
import re
import signal
import socket
import subprocess
import sys

import aiohttp
import pytest

from tests.unit.proxy.stub_engine import StubEngine

COMMAND = [sys.executable, "-m", "pdkv_connector.proxy"]


def _fails_with(*arguments: str) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def test_a_taken_port_and_a_bad_url_are_one_line_each() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        upstreams = ("--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2")
        assert port in _fails_with(*upstreams, "--port", port)
    assert "'127.0.0.1:1'" in _fails_with("--prefill", "127.0.0.1:1", "--decode", "http://127.0.0.1:2")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_says_where_and_stops_when_told(number: signal.Signals) -> None:
    async def scenario() -> None:
        async with StubEngine("prefill").running() as p, StubEngine("decode").running() as d:
            process = await asyncio.create_subprocess_exec(
                *COMMAND, "--prefill", p.url, "--decode", d.url, "--port", "0", stderr=asyncio.subprocess.PIPE
            )
            assert process.stderr is not None
            try:
                async with asyncio.timeout(60):
                    while not (at := re.search(r"listening on (\S+)", (await process.stderr.readline()).decode())):
                        pass
                    async with aiohttp.request("POST", at[1] + "/v1/completions", json={"prompt": "x"}) as response:
                        assert response.status == 200
                    process.send_signal(number)
                    assert await process.wait() == 0
            finally:
                if process.returncode is None:
                    process.kill()
        assert len(p.bodies) == len(d.bodies) == 1

    asyncio.run(scenario())
