"""A TCP relay for the control channel: it passes, holds, slows and cuts, and tells what has passed.

Frames are looked at as bytes, so there must be no keys on the channel.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from tests.engines.rig.process import wait_until

CHUNK_BYTES = 65_536
CALL_S = 10.0


def tag(message: str) -> bytes:
    """How a control message of this kind announces itself on the wire: a short string of msgpack."""
    return bytes([0xA0 + len(message)]) + message.encode()


class Relay:
    """Listens on `address` and passes on to `target`, both `host:port`."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="relay", daemon=True).start()
        self._passing = asyncio.Event()
        self._passing.set()
        self._delay_s = 0.0
        self._held_tag = b""
        self._seen = b""
        self._port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.restore()

    @property
    def address(self) -> str:
        """Where to connect instead of to the target."""
        return f"127.0.0.1:{self._port}"

    def hold(self) -> None:
        """Pass nothing from now on; connections stay open, new ones are accepted."""
        self._loop.call_soon_threadsafe(self._passing.clear)

    def hold_from(self, message: str) -> None:
        """Hold the first message of this kind that comes, and everything after it."""
        self._held_tag = tag(message)

    def slow(self, delay_s: float) -> None:
        """Pass each piece this much later than the one before."""
        self._delay_s = delay_s

    def wait_for(self, message: str, limit_s: float = 60.0) -> None:
        """Wait until a message of this kind has come, passed on or held. Raises TimeoutError."""
        wait_until(lambda: tag(message) in self._seen, f"{message} on the control channel", limit_s)

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        self._run(self._cut())

    def restore(self) -> None:
        """Pass everything again, also what was held."""
        self._run(self._restore())

    def close(self) -> None:
        """End it."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    async def _restore(self) -> None:
        self._held_tag, self._delay_s, self._seen = b"", 0.0, b""
        self._passing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()

    async def _close(self) -> None:
        await self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._passing.wait()
            host, _, port = self._target.rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            self._writers.add(back)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        except OSError:
            pass  # one end is gone, and so the other
        finally:
            writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while chunk := await source.read(CHUNK_BYTES):
                self._seen += chunk
                if self._held_tag and self._held_tag in chunk:
                    self._passing.clear()
                await asyncio.sleep(self._delay_s)
                await self._passing.wait()
                sink.write(chunk)
                await sink.drain()
        finally:
            sink.transport.abort()
            self._writers.discard(sink)
