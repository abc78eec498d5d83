"""The processes of a soak: two engines, each with the lives it has had, and a proxy for each order of dispatch."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdkv_connector.cli import servers
from pdkv_connector.cli.models import ensure_model
from pdkv_connector.cli.servers import EngineSpec, Server

ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
READY_LIMIT_S = 600.0
CHUNK_TOKENS = 512
NICENESS = 5
LOWEST_PORT = 10_000
MODEL = "smollm2"
CONNECTOR = {"kv_connector": "PDKVConnector", "kv_load_failure_policy": "recompute"}


def lasting_port() -> int:
    """A free port that no outgoing connection is given while its server is down, as ports chosen by the OS may be."""
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(LOWEST_PORT, lowest_outgoing)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


@dataclass(frozen=True)
class Life:
    """One process of a side, from start to end."""

    name: str
    server: Server
    timeline: Path


@dataclass
class Side:
    """One engine at one address, however often it is started there."""

    role: str
    core: int
    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    connector: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port = lasting_port()
        self.settings = {"control_port": lasting_port(), **self.settings}

    @property
    def url(self) -> str:
        """The address that all its lives share."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def life(self) -> Life:
        """The latest one."""
        return self.lives[-1]

    def start(self) -> Life:
        """Start the next life; `wait_ready` waits for it."""
        name = f"{self.role}-{len(self.lives) + 1}"
        timeline = self.folder / f"{name}.timeline.jsonl"
        timeline.unlink(missing_ok=True)
        server = servers.start_engine(self._spec(name, timeline), self.folder, self.port)
        self.lives.append(Life(name, server, timeline))
        return self.life

    def wait_ready(self) -> None:
        """Wait until the latest life serves."""
        self.life.server.wait_ready(READY_LIMIT_S)
        if self.role == "decode":
            # vLLM spins while it waits for KV: on two cores it would slow down the prefill it waits for.
            self.life.server.step_aside(NICENESS)

    def _spec(self, name: str, timeline: Path) -> EngineSpec:
        extra = {**self.settings, "timeline_path": str(timeline)}
        transfer = {**CONNECTOR, "kv_role": ROLES[self.role], "kv_connector_extra_config": extra, **self.connector}
        arguments = ("--max-num-batched-tokens", str(CHUNK_TOKENS), "--max-num-seqs", "16")
        # float32: greedy text of narrower types may change with the shape of a batch, transfer or not.
        return EngineSpec(
            name, ensure_model(MODEL), self.core, kv_transfer=transfer, arguments=arguments,
            environment=self.environment,
        )  # fmt: skip


@dataclass
class Pair:
    """Both sides, and the proxies by order of dispatch."""

    prefill: Side
    decode: Side
    proxies: dict[str, Server] = field(default_factory=dict)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Prefill, then decode."""
        return self.prefill, self.decode

    def side(self, role: str) -> Side:
        """The side of this role."""
        return {side.role: side for side in self.sides}[role]

    def start(self) -> None:
        """Start all processes and wait until they serve."""
        for side in self.sides:
            side.start()
        for side in self.sides:
            side.wait_ready()
        for order in ("concurrent", "sequential"):
            folder = self.prefill.folder / order
            proxy = servers.start_proxy([self.prefill.url], [self.decode.url], folder, sequential=order == "sequential")
            self.proxies[order] = proxy
            proxy.wait_ready(READY_LIMIT_S)

    def stop(self) -> None:
        """End everything that still runs."""
        for server in (*self.proxies.values(), *(life.server for side in self.sides for life in side.lives)):
            server.stop()


def make_pair(folder: Path, damaged_slab: int | None = None) -> Pair:
    """Sides with the connector's own defaults; as a control, a decode side that zeroes its slabs from that one on."""
    if damaged_slab is None:
        return Pair(Side("prefill", 0, folder), Side("decode", 1, folder))
    damaging = {"kv_connector_module_path": "tests.soak.damaged"}
    flip = {"PDKV_TEST_ZERO_SLABS_FROM": str(damaged_slab)}
    # Raw and unchecked: a coded slab carries a check of its own.
    prefill = Side("prefill", 0, folder, {"codec": "raw"})
    return Pair(prefill, Side("decode", 1, folder, {"integrity": False}, damaging, flip))
