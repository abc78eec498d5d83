"""A prefill and a decode server behind the proxy, asked over HTTP."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdkv_connector.cli import servers
from pdkv_connector.cli.models import ensure_model
from pdkv_connector.cli.servers import EngineSpec, Server
from pdkv_connector.proxy import bodies
from tests.engines.rig.dialect import free_port
from tests.engines.rig.testbed import CHUNK_TOKENS, MAX_TOKENS
from tests.faults.rig.client import Answer, Client, Pending
from tests.faults.rig.ground import BRISK, SLACK_S
from tests.faults.rig.vllm_server import VllmServer, kv_transfer

CONTEXT_TOKENS = {"producer": 2048, "consumer": 4096}
READY_S = 60.0
FULL_DISK = Path("/dev/full")
Body = dict[str, Any]


def server_of(role: str, folder: Path, settings: Mapping[str, Any], core: int) -> VllmServer:
    """A server that has not been started."""
    transfer = kv_transfer(role, {**BRISK, "control_port": free_port(), **settings})
    spec = EngineSpec(
        role,
        ensure_model("smollm2"),
        core=core,
        max_model_len=CONTEXT_TOKENS[role],
        kv_transfer=transfer,
        arguments=("--max-num-batched-tokens", str(CHUNK_TOKENS), "--max-num-seqs", "16"),
        environment={"UCX_TLS": "tcp"},
    )
    return VllmServer(spec, folder)


def body_of(prompt: list[int], max_tokens: int = MAX_TOKENS, **wishes: Any) -> Body:
    """A greedy completion that no prefix cache knows."""
    shared = {"temperature": 0, "ignore_eos": True, "cache_salt": uuid.uuid4().hex}
    return {"prompt": prompt, "max_tokens": max_tokens, **shared, **wishes}


@dataclass
class Served:
    """Both servers, the proxy and a client. D's timeline goes to a full disk; its context is longer than P's."""

    folder: Path
    prefill: VllmServer = field(init=False)
    decode: VllmServer = field(init=False)
    client: Client = field(init=False)
    proxy: Server | None = None
    _references: dict[tuple[tuple[int, ...], int], list[int]] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """True between `start` and `stop`."""
        return self.proxy is not None

    def start(self) -> None:
        """Start both servers and the proxy, and wait until they serve."""
        self.prefill = server_of("producer", self.folder, {}, 0)
        self.decode = server_of("consumer", self.folder, {"timeline_path": str(FULL_DISK)}, 1)
        self.client = Client()
        try:
            self.prefill.start()
            self.decode.start()
            self.prefill.wait_ready()
            self.decode.wait_ready()
            self.proxy = servers.start_proxy([self.prefill.url], [self.decode.url], self.folder)
            self.proxy.wait_ready(READY_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything; may be called twice."""
        if self.proxy is not None:
            self.proxy.stop()
        self.proxy = None
        if hasattr(self, "client"):
            self.client.close()
            self.decode.stop()
            self.prefill.stop()
            del self.client

    def over_proxy(self, body: Body, headers: Mapping[str, str] | None = None) -> Pending:
        """Ask as a client of the deployment does."""
        assert self.proxy is not None
        return self.client.ask(self.proxy.url, body, headers)

    def legs(self, body: Body, on_prefill: Body | None = None) -> tuple[Pending, Pending]:
        """Ask both servers at once, as a router that knows no exceptions; `on_prefill` is added to P's request."""
        probed = self.client.ask(self.prefill.url, bodies.PROBE).result(READY_S).body["kv_transfer_params"]
        transfer_id = uuid.uuid4().hex
        to_prefill = bodies.prefill_body(body, bodies.concurrent_prefill_params(transfer_id), chat=False)
        to_decode = bodies.decode_body(body, bodies.concurrent_decode_params(transfer_id, probed))
        prefill = self.client.ask(self.prefill.url, {**to_prefill, **(on_prefill or {})})
        return prefill, self.client.ask(self.decode.url, to_decode)

    def alone(self, body: Body) -> Answer:
        """D's answer without any transfer."""
        return self.client.ask(self.decode.url, {**body, "cache_salt": uuid.uuid4().hex}).result(READY_S)

    def reference(self, prompt: list[int], max_tokens: int = MAX_TOKENS) -> list[int]:
        """Tokens of D alone."""
        key = (tuple(prompt), max_tokens)
        if key not in self._references:
            self._references[key] = self.alone(body_of(prompt, max_tokens)).token_ids
        return self._references[key]

    def assert_at_rest(self, limit_s: float) -> float:
        """All blocks of both are back by their own metrics; the seconds that took."""
        begun = time.monotonic()
        for server in (self.prefill, self.decode):
            server.wait_at_rest(limit_s + SLACK_S)
        return time.monotonic() - begun

    def assert_serves(self, prompt: list[int]) -> None:
        """Each server alone and both together give the right tokens, and D takes P's KV."""
        reference = self.reference(prompt)
        assert self.client.ask(self.prefill.url, body_of(prompt)).result(READY_S).token_ids == reference
        before = self.decode.loaded_tokens()
        assert self.over_proxy(body_of(prompt)).result(READY_S).token_ids == reference
        assert self.decode.loaded_tokens() - before == len(prompt) - 1
        self.assert_at_rest(0.0)
