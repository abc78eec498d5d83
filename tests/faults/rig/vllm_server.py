"""One vLLM server at a fixed address: killed, stopped and started again, and what it says of itself."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdkv_connector.cli import servers
from pdkv_connector.cli.servers import EngineSpec, Server
from tests.engines.rig.process import wait_until

READY_S = 240.0
SAMPLE = re.compile(r"^(vllm:\w+)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


@dataclass
class VllmServer:
    """`spec` says what runs; the HTTP port and the control port stay the same over restarts."""

    spec: EngineSpec
    folder: Path
    port: int = field(default_factory=servers.free_port)
    _process: Server | None = None
    _num_starts: int = 0

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> Server:
        """The running process."""
        assert self._process is not None, f"{self.spec.name} has not been started"
        return self._process

    def start(self) -> VllmServer:
        """Start it; returns at once."""
        self._num_starts += 1
        log = self.folder / f"{self.spec.name}-{self._num_starts}.log"
        self._process = servers.start(
            self.spec.name, self.spec.command(self.port), self.port, log, self.spec.full_environment()
        )
        return self

    def wait_ready(self) -> VllmServer:
        """Wait until it serves. Raises EngineError with the cause."""
        self.process.wait_ready(READY_S)
        return self

    def kill(self) -> None:
        """SIGKILL to all its processes, as a crash of the machine would end them."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.stop()

    def pause(self) -> None:
        """SIGSTOP to all its processes: connections stay open, nothing is read, nothing is said."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it in an orderly way, also when it is paused; no error when it never ran."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.resume()
            self._process.stop()

    def log(self) -> str:
        """What the present process has printed."""
        return self.process.log_path.read_text(errors="replace")

    def metrics(self) -> dict[str, float]:
        """vLLM's own metrics by name, summed over labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=20) as response:
            text = response.read().decode()
        sums: dict[str, float] = {}
        for name, value in SAMPLE.findall(text):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def at_rest(self) -> bool:
        """True when no block is in use and no request is held, by its own metrics."""
        return not any(self.in_use().values())

    def in_use(self) -> dict[str, float]:
        """What a server at rest has none of."""
        metrics = self.metrics()
        return {
            name: metrics[f"vllm:{name}"]
            for name in ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")
        }

    def wait_at_rest(self, limit_s: float) -> float:
        """Seconds until all blocks were back. Raises TimeoutError with what was held."""
        begun = time.monotonic()
        try:
            wait_until(self.at_rest, f"rest of {self.spec.name}", limit_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.in_use()}") from None
        return time.monotonic() - begun

    def loaded_tokens(self) -> int:
        """Prompt tokens whose KV came from another engine, so far."""
        return int(self.metrics().get("vllm:external_prefix_cache_hits_total", 0))


def kv_transfer(role: str, settings: dict[str, Any], policy: str = "recompute") -> dict[str, Any]:
    """A `--kv-transfer-config` of this project's connector."""
    return {
        "kv_connector": "PDKVConnector",
        "kv_role": f"kv_{role}",
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": settings,
    }
