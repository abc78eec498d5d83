"""Real servers as child processes: start, wait until ready, stop with everything they started.

Used by the demo, by tests and by benchmarks. A server's output goes to a log file; a failure quotes its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdkv_connector.errors import EngineError

STOP_GRACE_S = 20.0
POLL_S = 0.2
TAIL_BYTES = 16_384
NICENESS = 15


@dataclass(frozen=True)
class EngineSpec:
    """A vLLM server: `core` pins its compute threads to one CPU core, `kv_transfer` is its `--kv-transfer-config`.

    The environment is that of a CPU engine beside others on a small machine: without it threads of two engines spin
    against each other and decode falls below one token per second.
    """

    name: str
    model: Path
    core: int | None = None
    dtype: str = "float32"
    max_model_len: int = 8192
    kv_cache_gib: int = 1
    kv_transfer: Mapping[str, Any] | None = None
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, port: int) -> list[str]:
        """The command line, listening on loopback `port`."""
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--model", str(self.model), "--dtype", self.dtype, "--enforce-eager"]
        command += ["--max-model-len", str(self.max_model_len), "--generation-config", "vllm"]
        if self.kv_transfer is not None:
            command += ["--kv-transfer-config", json.dumps(self.kv_transfer)]
        return [*command, *self.arguments]

    def full_environment(self) -> dict[str, str]:
        """The caller's environment, the settings of a CPU engine, and `environment` over both."""
        cores = {} if self.core is None else {"VLLM_CPU_OMP_THREADS_BIND": str(self.core), "OMP_NUM_THREADS": "1"}
        cpu = {"OMP_WAIT_POLICY": "PASSIVE", "VLLM_CPU_KVCACHE_SPACE": str(self.kv_cache_gib)}
        quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        return {**os.environ, **cores, **cpu, **quiet, **self.environment}


class Server:
    """One running server process; `url` is its base URL, `log_path` has all it printed."""

    def __init__(self, name: str, url: str, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self.name = name
        self.url = url
        self.log_path = log_path
        self._process = process
        self._started = time.monotonic()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True until the first process has ended."""
        return self._process.poll() is None

    def wait_ready(self, limit_s: float, waiting: Callable[[], object] = lambda: None) -> float:
        """Return the seconds it took until /health answered 200; `waiting` is called now and then.

        Raises EngineError when the process ends first, or after `limit_s` seconds.
        """
        while not answers(f"{self.url}/health"):
            passed_s = time.monotonic() - self._started
            if (code := self._process.poll()) is not None:
                raise EngineError(f"{self.name} ended with code {code} after {passed_s:.0f} s: {self._why()}")
            if passed_s > limit_s:
                raise EngineError(f"{self.name} was not ready after {limit_s:.0f} s: {self._why()}")
            waiting()
            time.sleep(POLL_S)
        return time.monotonic() - self._started

    def log_tail(self, num_lines: int = 20) -> str:
        """The last lines of its log."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - TAIL_BYTES))
            return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-num_lines:])

    def step_aside(self, niceness: int = NICENESS) -> None:
        """Let other servers' threads go first; threads that are started later inherit it.

        Where the kernel groups tasks by session, niceness counts inside a group only and the group has one of its own.
        """
        os.setpriority(os.PRIO_PGRP, self.pid, niceness)
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/autogroup").write_text(str(niceness))

    def kill(self) -> None:
        """End the process and its children at once, as a crash of their machine would (SIGKILL)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End the process and its children: politely, then, after a grace period, not so. May be called twice."""
        # Only the first process is asked: it knows in which order to end its children.
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_GRACE_S)
        self.kill()

    def _why(self) -> str:
        lines = [line for line in self.log_tail(60).splitlines() if "Error" in line or "ERROR" in line]
        return f"{lines[-1].strip() if lines else 'no error in its log'} (log: {self.log_path})"


def start(name: str, command: Sequence[str], port: int, log_path: Path, environment: Mapping[str, str]) -> Server:
    """Start `command`, a server on loopback `port`, in a process group of its own that ends with this process."""
    tethered = [sys.executable, "-m", "pdkv_connector.cli.tether", *command]
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            tethered,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    return Server(name, f"http://127.0.0.1:{port}", process, log_path)


def start_engine(spec: EngineSpec, log_dir: Path, port: int = 0) -> Server:
    """Start a vLLM server on `port`, 0 for a free one; its log is `log_dir/NAME.log`."""
    port = port or free_port()
    return start(spec.name, spec.command(port), port, log_dir / f"{spec.name}.log", spec.full_environment())


def start_proxy(prefill: Sequence[str], decode: Sequence[str], log_dir: Path, *, sequential: bool = False) -> Server:
    """Start the reference proxy over these URLs on a free port; its log is `log_dir/proxy.log`."""
    port = free_port()
    command = [sys.executable, "-m", "pdkv_connector.proxy", "--port", str(port), "--prefill", *prefill]
    command += ["--decode", *decode, *(["--sequential"] if sequential else [])]
    return start("proxy", command, port, log_dir / "proxy.log", os.environ)


@contextlib.contextmanager
def stopping(servers: list[Server]) -> Iterator[list[Server]]:
    """Stop every server in the list, also those appended meanwhile, when the block ends in whatever way."""
    try:
        yield servers
    finally:
        for server in reversed(servers):
            server.stop()


def free_port() -> int:
    """A loopback port the system says is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def answers(url: str, limit_s: float = 2.0) -> bool:
    """True when a GET of `url` is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=limit_s) as response:  # noqa: S310
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
