"""ChildProcess: one engine process with its pipe and its log; Spares: one that has imported the engine in advance."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tests.engines.rig.spec import COMMON, EngineSpec

REPOSITORY = Path(__file__).resolve().parents[3]
LOG_TAIL_CHARS = 3000

Message = dict[str, Any]


class EngineDied(Exception):
    """The engine process ended or did not answer in time; carries the end of its log."""


class ChildProcess:
    """Runs `tests.engines.rig.child`: JSON lines both ways, all it prints goes to `log_path`.

    `take` gets every message, in a thread of its own, and None once when the process has closed its end.
    """

    def __init__(
        self, spec: EngineSpec, log_path: Path, take: Callable[[Message | None], None], spares: Spares | None = None
    ) -> None:
        self.log_path = log_path
        self._name = spec.name
        self._take = take
        self._process = spares.take(log_path) if spares and not spec.netns else _spawn(log_path, spec.netns)
        env = spec.environment()
        self.send({"log": str(log_path), "env": env, "engine_args": spec.engine_args(), "core": spec.core})
        threading.Thread(target=self._listen, name=f"engine-{spec.name}", daemon=True).start()

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

    def death(self, why: str) -> EngineDied:
        """The error to raise when the engine cannot go on."""
        return EngineDied(f"engine {self._name} {why}; its log ends with:\n{self.log()[-LOG_TAIL_CHARS:]}")

    def send(self, message: Message) -> None:
        """Write one message. Raises EngineDied when nobody reads it."""
        try:
            sink = _pipe(self._process.stdin)
            sink.write(json.dumps(message) + "\n")
            sink.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self.death(str(error)) from error

    def _listen(self) -> None:
        for line in _pipe(self._process.stdout):
            self._take(json.loads(line))
        self._take(None)

    def pause(self) -> None:
        """Stop the clock of an idle engine (SIGSTOP), so that its polling costs others nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        self._process.send_signal(signal.SIGCONT)

    def end(self, farewell: Message | None, timeout_s: float) -> None:
        """Say `farewell`, or close the pipe when there is none, and wait; killed by pid when that takes too long."""
        self.resume()
        try:
            if farewell and self.alive:
                self.send(farewell)
            else:
                _pipe(self._process.stdin).close()
            self._process.wait(timeout_s)
        except (subprocess.TimeoutExpired, EngineDied, OSError):
            self.kill()

    def kill(self) -> None:
        """End the process at once (SIGKILL), as a crash would."""
        self._process.kill()
        self._process.wait()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


class Spares:
    """One process in advance: it has imported the engine, and becomes whichever is needed next."""

    def __init__(self) -> None:
        self._spare: subprocess.Popen[str] | None = None

    def take(self, log_path: Path) -> subprocess.Popen[str]:
        """A process to start an engine in; the next one begins to get ready."""
        taken = self._spare or _spawn(log_path)
        self._spare = _spawn(log_path.with_name("spare.log"))
        return taken

    def end(self) -> None:
        """End the one that nobody took."""
        if self._spare is not None:
            self._spare.kill()
            self._spare.wait()
            self._spare = None


def _spawn(log_path: Path, netns: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.engines.rig.child"]
    if netns:
        command = ["ip", "netns", "exec", netns, *command]
    with log_path.open("w") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, **COMMON},
        )
