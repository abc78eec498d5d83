"""The engine process: `python -m tests.engines.rig.child`, JSON lines on stdin and stdout.

First line in: environment, log, engine arguments and core. Then commands `{"call": n, "do": name, ...}`; each is
answered by `{"event": "reply", "call": n, "value": ...}`. What ends is reported as `{"event": "finished", ...}`.
The process ends with its standard input, whatever the engine does at that moment.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TextIO

from tests.engines.rig import sabotage
from tests.engines.rig.engine import InProcessEngine, vllm_metrics
from tests.engines.rig.threads import settle

Command = dict[str, Any]
IDLE_WAIT_S = 0.2
EXIT_CRASHED = 3
PR_SET_PDEATHSIG = 1


class Channel:
    """The pipe to the parent: events out; commands in, read by a thread that ends the process at end of file."""

    def __init__(self, source: TextIO, sink: TextIO) -> None:
        self._sink = sink
        self._source = source
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin to read commands."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def _read(self) -> None:
        for line in self._source:
            self._commands.put(json.loads(line))
        os._exit(0)

    def send(self, event: str, **fields: Any) -> None:
        """Report one event."""
        self._sink.write(json.dumps({"event": event, **fields}, default=list) + "\n")
        self._sink.flush()

    def commands(self, wait: bool) -> Iterator[Command]:
        """Commands that have arrived; waits a moment for the first when `wait`."""
        with suppress(queue.Empty):
            yield self._commands.get(timeout=IDLE_WAIT_S) if wait else self._commands.get_nowait()
            while True:
                yield self._commands.get_nowait()


class Child:
    """Alternates between commands and engine steps."""

    def __init__(self, channel: Channel, engine: InProcessEngine) -> None:
        self._channel = channel
        self._engine = engine
        self._running = True
        self._calls: dict[str, Callable[[Command], Any]] = {
            "submit": lambda c: engine.add(c["request"], c["prompt"], c["max_tokens"], c["params"]),
            "abort": self._abort,
            "counters": lambda _: engine.counters(),
            "steps": lambda _: engine.steps(),
            "metrics": lambda _: vllm_metrics(),
            "reset_prefix_cache": lambda _: engine.reset_prefix_cache(),
            "preempt": lambda _: engine.preempt(),
            "stop": self._stop,
        }

    def run(self) -> None:
        """Serve until told to stop."""
        while self._running:
            for command in self._channel.commands(wait=not self._engine.has_work()):
                self._serve(command)
            for record in self._engine.step():
                self._channel.send("finished", **record)

    def _serve(self, command: Command) -> None:
        try:
            value = self._calls[command["do"]](command)
        except Exception as error:  # noqa: BLE001 - whatever it was, the parent raises it
            self._channel.send("reply", call=command["call"], error=f"{type(error).__name__}: {error}")
        else:
            self._channel.send("reply", call=command["call"], value=value)

    def _abort(self, command: Command) -> bool:
        record = self._engine.abort(command["request"])
        if record is not None:
            self._channel.send("finished", **record)
        return record is not None

    def _stop(self, _: Command) -> None:
        self._running = False


def take_pipes() -> Channel:
    """Keep the pipes for the protocol and send everything else that is printed to standard error."""
    sink = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return Channel(sys.stdin, sink)


def print_to(log_path: str) -> None:
    """Send everything that is printed from now on to a log."""
    with open(log_path, "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent ends: end of file does not reach a stopped process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Start the engine, serve, stop; a crash of the engine is reported with its traceback."""
    die_with_parent()
    channel = take_pipes()
    import vllm  # noqa: F401 - half of a start, done before anybody needs the engine

    line = sys.stdin.readline()
    if not line:
        return
    start = json.loads(line)
    print_to(start["log"])
    os.environ.update(start["env"])
    os.sched_setaffinity(0, {start["core"]})
    channel.start()
    try:
        sabotage.apply(os.environ)
        engine = InProcessEngine(start["engine_args"])
        settle(start["core"])
        channel.send("ready", facts=engine.facts())
        Child(channel, engine).run()
        engine.shutdown()
    except BaseException:  # noqa: BLE001 - reported, then the process ends
        traceback.print_exc()
        channel.send("crashed", error=traceback.format_exc()[-4000:])
        os._exit(EXIT_CRASHED)
    channel.send("stopped")
    # Threads of transports and of OpenMP may outlive the engine: nothing is left to save.
    os._exit(0)


if __name__ == "__main__":
    main()
