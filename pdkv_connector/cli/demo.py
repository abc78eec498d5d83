"""`pdkv demo`: a prefill server, a decode server and the proxy on this machine, measured against one server alone."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.status import Status

from pdkv_connector.cli import client, demo_report, servers
from pdkv_connector.cli.client import Reply
from pdkv_connector.cli.demo_report import Round
from pdkv_connector.cli.models import ensure_model
from pdkv_connector.cli.prompts import ship_log
from pdkv_connector.cli.servers import EngineSpec, Server
from pdkv_connector.errors import PdkvError
from pdkv_connector.telemetry import timeline

READY_LIMIT_S = 600.0
ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
CHUNK_TOKENS = 512


@dataclass(frozen=True)
class DemoPlan:
    """What to run: prompts of about these many tokens, `num_tokens` greedy tokens each, all files under `out_dir`.

    `engines_file` there lists the engines' URLs, for `pdkv top`.
    """

    out_dir: Path
    prompt_tokens: tuple[int, ...] = (600, 2000, 4400)
    num_tokens: int = 24
    model: str = "smollm2"
    engines_file: str = "engines.txt"


def run(plan: DemoPlan, console: Console) -> bool:
    """Run the demo and print its report. True when all tokens were equal and all KV came over the wire."""
    plan.out_dir.mkdir(parents=True, exist_ok=True)
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        console.print(
            f"[yellow]note[/] this machine is busy with other work (load {load:.1f} on {cores} cores): ", end=""
        )
        console.print("the seconds below will be too long, and not evenly so")
    with console.status(f"model {plan.model}: converting it on first use") as status:
        model = ensure_model(plan.model)
        console.print(f"model      {model}")
        with servers.stopping([]) as running:
            prefill, proxy = _start(running, model, plan, console, status)
            rounds = asyncio.run(_measure(plan, prefill, proxy, console, status))
            status.update("stopping the servers")
    return demo_report.report(rounds, transfers(plan.out_dir), plan.out_dir / "timeline.png", console)


def _start(
    running: list[Server], model: Path, plan: DemoPlan, console: Console, status: Status
) -> tuple[Server, Server]:
    for core, name in enumerate(ROLES):
        timeline_path = plan.out_dir / f"{name}.timeline.jsonl"
        timeline_path.unlink(missing_ok=True)
        running.append(servers.start_engine(_spec(name, core, model, timeline_path), plan.out_dir))
    # vLLM's processes spin while they wait: on two cores the decode engine would slow down the prefill it waits for.
    running[1].step_aside()
    for server in running:
        _await(server, console, status)
    (plan.out_dir / plan.engines_file).write_text("".join(f"{server.url}\n" for server in running))
    running.append(servers.start_proxy([running[0].url], [running[1].url], plan.out_dir))
    _await(running[2], console, status)
    return running[0], running[2]


def _spec(name: str, core: int, model: Path, timeline_path: Path) -> EngineSpec:
    # float32: greedy text of narrower types may change with the shape of a batch, transfer or not.
    extra = {"timeline_path": str(timeline_path)}
    kv_transfer = {"kv_connector": "PDKVConnector", "kv_role": ROLES[name], "kv_connector_extra_config": extra}
    arguments = ("--max-num-batched-tokens", str(CHUNK_TOKENS))
    return EngineSpec(name, model, core=core, kv_transfer=kv_transfer, arguments=arguments)


def _await(server: Server, console: Console, status: Status) -> None:
    ready_s = server.wait_ready(READY_LIMIT_S, lambda: status.update(f"starting {server.name}: {_last_words(server)}"))
    console.print(f"{server.name:10} {server.url}, pid {server.pid}, ready after {ready_s:.0f} s")


def _last_words(server: Server) -> str:
    return server.log_tail(1).strip()[-90:].replace("[", "(").replace("]", ")")


async def _measure(plan: DemoPlan, prefill: Server, proxy: Server, console: Console, status: Status) -> list[Round]:
    rounds: list[Round] = []
    async with aiohttp.ClientSession() as http:
        for server in (proxy, prefill):
            status.update(f"warming up over {server.name}")
            await client.stream(http, server.url, {"prompt": ship_log(64, server.name), "max_tokens": 2})
        for number, num_tokens in enumerate(plan.prompt_tokens, 1):
            label = f"prompt {number} of {len(plan.prompt_tokens)}"
            body = _body(num_tokens, plan.num_tokens)
            with _ticking(status, f"{label}: over prefill, decode and proxy") as on_token:
                transferred = await client.stream(http, proxy.url, body(), on_token)
            with _ticking(status, f"{label}: {prefill.name} server alone") as on_token:
                colocated = await client.stream(http, prefill.url, body(), on_token)
            rounds.append(Round(transferred, colocated))
            console.print(f"{label}: {rounds[-1].line()}")
    return rounds


def _body(prompt_tokens: int, num_tokens: int) -> Any:
    prompt = ship_log(prompt_tokens, uuid.uuid4().hex)
    shared = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    return lambda: {**shared, "cache_salt": uuid.uuid4().hex}  # a salt each: no run may hit the other's prefix cache


@contextmanager
def _ticking(status: Status, what: str) -> Iterator[Any]:
    status.update(f"{what}: prefill")

    def on_token(reply: Reply) -> None:
        status.update(f"{what}: {len(reply.token_ids)} tokens, the first after {reply.ttft_s:.2f} s")

    yield on_token


def transfers(out_dir: Path) -> dict[str, timeline.Transfer]:
    """What both workers recorded. Raises PdkvError where a file is missing."""
    paths = [out_dir / f"{name}.timeline.jsonl" for name in ROLES]
    if missing := [path for path in paths if not path.exists()]:
        raise PdkvError(f"{missing[0]} was not written: does the server run PDKVConnector with timeline_path?")
    return timeline.read(paths)
