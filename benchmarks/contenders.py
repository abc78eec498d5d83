"""What is compared: one engine alone, vLLM's NixlConnector, and this project's connector."""

from __future__ import annotations

import os
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.netns import ShapedLink
from tests.engines.rig.dialect import DIALECTS
from tests.engines.rig.pair import EnginePair, Order
from tests.engines.rig.process import EngineProcess
from tests.engines.rig.spec import EngineSpec

COLOCATED = "colocated"
NAMES = (COLOCATED, "nixl", "pdkv")
WARM_UP_TOKENS = 256
LOWEST_TOKEN, HIGHEST_TOKEN = 1_000, 40_000


@dataclass(frozen=True)
class Workload:
    """Engine settings common to all contenders; `extra` are settings of this project's connector."""

    model: Path
    dtype: str
    chunk_tokens: int
    max_model_len: int
    extra: dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """One measured request, times in seconds since P was given it.

    `own_prefill_s` is the same engine's prefill of the same prompt without any transfer, measured just before.
    `prefill_s` is P's first token in the measured request, `first_token_s` D's. `load_1m` is the machine's load average
    just before: above 2 on a machine of 2 cores somebody else was at work, and the figure is worth little.
    """

    connector: str
    rate: str
    num_tokens: int
    repeat: int
    own_prefill_s: float
    prefill_s: float
    first_token_s: float
    link_bytes: int
    num_computed_on_decode: int
    load_1m: float

    @property
    def added_s(self) -> float:
        """What disaggregation added to the time to the first token that a user sees."""
        return self.first_token_s - self.own_prefill_s

    @property
    def exposed_s(self) -> float:
        """What came after P's prefill in the same request: the part of the transfer that nothing hid."""
        return self.first_token_s - self.prefill_s

    def as_row(self) -> dict[str, Any]:
        """All fields and the figures."""
        return {**asdict(self), "added_s": self.added_s, "exposed_s": self.exposed_s}


def make_prompt(num_tokens: int, seed: str) -> list[int]:
    """Random token ids: no two measurements share a prefix."""
    source = random.Random(f"{num_tokens}/{seed}")
    return [source.randrange(LOWEST_TOKEN, HIGHEST_TOKEN) for _ in range(num_tokens)]


def _first_token_s(request: Any, since: float) -> float:
    assert request.t_first_token is not None, f"{request.request} ended with {request.finish_reason} and no token"
    return float(request.t_first_token) - since


class Contender:
    """Engines of one connector: one per namespace of the link, or a single one for `colocated`."""

    def __init__(self, name: str, workload: Workload, link: ShapedLink, folder: Path) -> None:
        self.name = name
        self._link = link
        roles = ("producer",) if name == COLOCATED else ("producer", "consumer")
        self._engines = [
            EngineProcess(_spec(name, role, side, workload, link, folder), folder / f"{name}-{role}.log")
            for side, role in enumerate(roles)
        ]
        self._pair = EnginePair(self._engines[0], self._engines[-1], DIALECTS[name]) if len(roles) > 1 else None

    def pause(self) -> None:
        """Freeze the engines while another contender is measured."""
        for engine in self._engines:
            engine.wait_ready().process.pause()

    def resume(self) -> None:
        """Thaw the engines and run one short request, so that connections are up before anything is timed."""
        for engine in self._engines:
            engine.process.resume()
        self._request(make_prompt(WARM_UP_TOKENS, f"{self.name}/{random.random()}"))

    def measure(self, rate: str, num_tokens: int, repeat: int) -> Sample:
        """Prefill the prompt alone on P, forget it, then time the request over the link."""
        prompt = make_prompt(num_tokens, f"{self.name}/{rate}/{repeat}")
        own = self._engines[0].generate(prompt, 1)
        self._engines[0].reset_prefix_cache()
        before, load_1m = self._link.sent_bytes(), os.getloadavg()[0]
        prefill, last = self._request(prompt)
        return Sample(
            connector=self.name,
            rate=rate,
            num_tokens=num_tokens,
            repeat=repeat,
            own_prefill_s=_first_token_s(own, own.t_added),
            prefill_s=_first_token_s(prefill, prefill.t_added),
            first_token_s=_first_token_s(last, prefill.t_added),
            link_bytes=self._link.sent_bytes() - before,
            num_computed_on_decode=0 if last is prefill else last.num_computed,
            load_1m=load_1m,
        )

    def _request(self, prompt: list[int]) -> tuple[Any, Any]:
        pair = self._pair
        if pair is None:
            alone = self._engines[0].generate(prompt, 1)
            self._engines[0].reset_prefix_cache()
            return alone, alone
        # NixlConnector's D needs P's answer; ours is sent to both at once.
        order: Order = "concurrent" if pair.dialect.concurrent else "sequential"
        outcome = pair.transfer(prompt, 1, order)
        pair.reset()
        return outcome.prefill, outcome.decode

    def stop(self) -> None:
        """Stop the engines."""
        for engine in self._engines:
            engine.stop()


def _spec(name: str, role: str, side: int, workload: Workload, link: ShapedLink, folder: Path) -> EngineSpec:
    host, env, config = link.hosts[side], {}, None
    if name != COLOCATED:
        dialect = DIALECTS[name]
        settings = {**workload.extra, "timeline_path": str(folder / f"{name}-{role}.jsonl")}
        config = dialect.config(f"kv_{role}", host, "fail", settings)
        env = {**dialect.env(host), "UCX_NET_DEVICES": link.devices[side]}
    return EngineSpec(
        name=f"{name}-{role}",
        model=workload.model,
        dtype=workload.dtype,
        kv_transfer_config=config,
        max_num_batched_tokens=workload.chunk_tokens,
        max_model_len=workload.max_model_len,
        core=side,
        netns=link.namespaces[side],
        env=env,
    )
