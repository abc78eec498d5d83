"""EngineProcess: the parent's handle on one engine process."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.engines.rig.spec import EngineSpec

REPOSITORY = Path(__file__).resolve().parents[3]
START_S = 180.0
CALL_S = 120.0
STOP_S = 20.0
POLL_S = 0.05
LOG_TAIL_CHARS = 3000


class EngineDied(Exception):
    """The engine process ended or did not answer in time; carries the end of its log."""


@dataclass(frozen=True)
class Finished:
    """How one request ended. `num_computed` counts prompt and output tokens this engine ran through the model."""

    request: str
    token_ids: list[int]
    finish_reason: str
    kv_transfer_params: dict[str, Any] | None
    num_computed: int
    t_added: float
    t_finished: float
    t_first_token: float | None = None


class EngineProcess:
    """One engine in its own process. Start returns at once; every other method waits until the engine is ready."""

    def __init__(self, spec: EngineSpec, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.facts: dict[str, Any] = {}
        self._ids = itertools.count()
        self._replies: dict[int, dict[str, Any]] = {}
        self._finished: dict[str, Finished] = {}
        self._status = "starting"
        self._changed = threading.Condition()
        self._process = self._spawn()
        threading.Thread(target=self._listen, name=f"engine-{spec.name}", daemon=True).start()
        self._write({"engine_args": spec.engine_args(), "core": spec.core})

    def _spawn(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.engines.rig.child"]
        if self.spec.netns:
            command = ["ip", "netns", "exec", self.spec.netns, *command]
        with self.log_path.open("w") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=REPOSITORY,
                env=self.spec.environment(),
            )

    @property
    def pid(self) -> int:
        """Process id of the engine (`ip netns exec` replaces itself by the command it runs)."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def log(self) -> str:
        """Everything the engine has logged."""
        return self.log_path.read_text(errors="replace")

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def _write(self, message: dict[str, Any]) -> None:
        try:
            sink = self._pipe(self._process.stdin)
            sink.write(json.dumps(message) + "\n")
            sink.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._died(str(error)) from error

    def _listen(self) -> None:
        for line in self._pipe(self._process.stdout):
            with self._changed:
                self._take(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._status = self._status if self._status in {"crashed", "stopped"} else "ended"
            self._changed.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        event = message.pop("event")
        if event == "reply":
            self._replies[message["call"]] = message
        elif event == "finished":
            self._finished[message["request"]] = Finished(**message)
        else:
            self._status = event
            self.facts = message.get("facts", self.facts)

    def _died(self, why: str) -> EngineDied:
        return EngineDied(f"engine {self.spec.name} {why}; its log ends with:\n{self.log()[-LOG_TAIL_CHARS:]}")

    def _await(self, done: Callable[[], bool], what: str, timeout_s: float) -> None:
        with self._changed:
            over = {"crashed", "ended", "stopped"}
            if not self._changed.wait_for(lambda: done() or self._status in over, timeout_s):
                raise self._died(f"gave no sign of {what} within {timeout_s} s")
            if not done():
                raise self._died(f"{self._status} before {what}")

    def wait_ready(self, timeout_s: float = START_S) -> EngineProcess:
        """Wait until the engine has started. Raises EngineDied with the end of the log."""
        self._await(lambda: bool(self.facts), "its start", timeout_s)
        return self

    def call(self, do: str, **fields: Any) -> Any:
        """Run one command in the child; raises RuntimeError with the child's error."""
        self.wait_ready()
        number = next(self._ids)
        self._write({"call": number, "do": do, **fields})
        self._await(lambda: number in self._replies, f"an answer to {do}", CALL_S)
        reply = self._replies.pop(number)
        if "error" in reply:
            raise RuntimeError(f"engine {self.spec.name}: {do}: {reply['error']}")
        return reply.get("value")

    def submit(self, prompt: list[int], max_tokens: int, params: dict[str, Any] | None = None) -> str:
        """Queue a request without waiting for it; returns its id."""
        request = f"{self.spec.name}-{next(self._ids)}"
        self.call("submit", request=request, prompt=prompt, max_tokens=max_tokens, params=params)
        return request

    def wait(self, request: str, timeout_s: float = CALL_S) -> Finished:
        """Wait until a submitted request has ended."""
        self._await(lambda: request in self._finished, f"the end of {request}", timeout_s)
        return self._finished.pop(request)

    def ended(self, request: str) -> bool:
        """True when the request has ended and `wait` will not block."""
        return request in self._finished

    def generate(self, prompt: list[int], max_tokens: int, params: dict[str, Any] | None = None) -> Finished:
        """Submit and wait."""
        return self.wait(self.submit(prompt, max_tokens, params))

    def abort(self, request: str) -> bool:
        """Abort a request; False when it had finished before. `wait` returns it with finish reason `abort`."""
        return bool(self.call("abort", request=request))

    def free_blocks(self) -> int:
        """Blocks of the KV pool nobody holds (cached prefixes count as free)."""
        return int(self.call("counters")["free_blocks"])

    def num_requests(self) -> int:
        """Requests the scheduler holds, also those finished whose blocks a transfer still needs."""
        return int(self.call("counters")["num_requests"])

    def reset_prefix_cache(self, timeout_s: float = 30.0) -> None:
        """Forget cached prefixes, once no request holds a block any more."""
        wait_until(lambda: bool(self.call("reset_prefix_cache")), f"an idle engine {self.spec.name}", timeout_s)

    def pause(self) -> None:
        """Stop the clock of an idle engine (SIGSTOP), so that its polling costs others nothing."""
        self.wait_ready()
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop the engine: asked first, killed by pid when it does not end in time."""
        # A ready engine is asked and shuts down; one that still starts ends with its standard input.
        self.resume()
        try:
            if self.facts and self.alive:
                self._write({"call": next(self._ids), "do": "stop"})
            else:
                self._pipe(self._process.stdin).close()
            self._process.wait(STOP_S)
        except (subprocess.TimeoutExpired, EngineDied, OSError):
            self.kill()

    def kill(self) -> None:
        """End the process at once (SIGKILL), as a crash would."""
        self._process.kill()
        self._process.wait()


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Poll until `condition` holds; raises TimeoutError naming `what`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {timeout_s} s")
        time.sleep(POLL_S)
