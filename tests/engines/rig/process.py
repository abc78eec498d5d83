"""EngineProcess: requests and commands for one engine process."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.rig.child_process import ChildProcess, Message, Spares
from tests.engines.rig.spec import EngineSpec

START_S = 180.0
CALL_S = 120.0
STOP_S = 20.0
POLL_S = 0.05
OVER = {"crashed", "ended", "stopped"}


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
    """One engine in its own `process`. Start returns at once; requests wait until the engine is ready."""

    def __init__(self, spec: EngineSpec, log_path: Path, spares: Spares | None = None) -> None:
        self.spec = spec
        self.facts: dict[str, Any] = {}
        self._ids = itertools.count()
        self._replies: dict[int, Message] = {}
        self._finished: dict[str, Finished] = {}
        self._status = "starting"
        self._changed = threading.Condition()
        self.process = ChildProcess(spec, log_path, self._take, spares)

    def _take(self, message: Message | None) -> None:
        with self._changed:
            event = message.pop("event") if message else "ended"
            if event == "reply" and message:
                self._replies[message["call"]] = message
            elif event == "finished" and message:
                self._finished[message["request"]] = Finished(**message)
            elif self._status not in OVER:
                self._status = event
                self.facts = (message or {}).get("facts", self.facts)
            self._changed.notify_all()

    def _await(self, done: Callable[[], bool], what: str, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: done() or self._status in OVER, timeout_s):
                raise self.process.death(f"gave no sign of {what} within {timeout_s} s")
            if not done():
                raise self.process.death(f"{self._status} before {what}")

    def wait_ready(self, timeout_s: float = START_S) -> EngineProcess:
        """Wait until the engine has started. Raises EngineDied with the end of the log."""
        self._await(lambda: bool(self.facts), "its start", timeout_s)
        return self

    def call(self, do: str, **fields: Any) -> Any:
        """Run one command in the child; raises RuntimeError with the child's error."""
        self.wait_ready()
        number = next(self._ids)
        self.process.send({"call": number, "do": do, **fields})
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

    def metrics(self) -> dict[str, float]:
        """vLLM's own metrics; the engine must have been started with its statistics on."""
        return dict(self.call("metrics"))

    def reset_prefix_cache(self, timeout_s: float = 30.0) -> None:
        """Forget cached prefixes, once no request holds a block any more."""
        wait_until(lambda: bool(self.call("reset_prefix_cache")), f"an idle engine {self.spec.name}", timeout_s)

    def stop(self) -> None:
        """Stop the engine: a ready one is asked and shuts down, one that still starts ends with its standard input."""
        self.process.end({"call": next(self._ids), "do": "stop"} if self.facts else None, STOP_S)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Poll until `condition` holds; raises TimeoutError naming `what`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {timeout_s} s")
        time.sleep(POLL_S)
