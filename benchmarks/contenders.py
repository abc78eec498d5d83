"""What is compared: one engine alone, vLLM's NixlConnector, and this project's connector with each codec."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.netns import ShapedLink
from tests.engines.rig.dialect import DIALECTS
from tests.engines.rig.pair import EnginePair, Order
from tests.engines.rig.process import EngineProcess
from tests.engines.rig.spec import EngineSpec

COLOCATED = "colocated"
CONNECTORS = (COLOCATED, "nixl", "pdkv")
CODECS = ("raw", "pack4", "split", "auto")
GUARDED, UNGUARDED = "guarded", "unguarded"
GUARDS: dict[str, dict[str, Any]] = {
    "": {},
    GUARDED: {},
    # As good as off: nothing is hashed, and no lease is renewed or runs out while a request is measured.
    UNGUARDED: {"integrity": False, "heartbeat_s": 600.0, "lease_s": 3600.0, "peer_timeout_s": 3600.0},
}
"""Connector settings by what watches over a transfer."""
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
class Entrant:
    """A connector, and where it has them, the codec it is told to use and whether its guards are on."""

    connector: str
    codec: str = ""
    guards: str = ""

    @property
    def name(self) -> str:
        """As results and tables show it: `pdkv (split)`, `pdkv (split, unguarded)`."""
        return f"{self.connector} ({', '.join(self._variant)})" if self._variant else self.connector

    @property
    def label(self) -> str:
        """As files are called: `pdkv-split`."""
        return "-".join((self.connector, *self._variant))

    @property
    def _variant(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.codec, self.guards)))

    @property
    def settings(self) -> dict[str, Any]:
        """Connector settings that make it this entrant."""
        return {**({"codec": self.codec} if self.codec else {}), **GUARDS[self.guards]}


def entrants(connectors: Iterable[str], codecs: Iterable[str]) -> list[Entrant]:
    """One entrant a connector, and of this project's one a codec."""
    codecs = list(codecs)
    return [
        entrant
        for connector in connectors
        for entrant in ([Entrant("pdkv", codec) for codec in codecs] if connector == "pdkv" else [Entrant(connector)])
    ]


def guard_entrants(codecs: Iterable[str]) -> list[Entrant]:
    """This project's connector, for each codec as it is and with its guards off."""
    return [Entrant("pdkv", codec, guards) for codec in codecs for guards in (GUARDED, UNGUARDED)]


@dataclass(frozen=True)
class Sample:
    """One measured request, times in seconds since P was given it.

    `own_prefill_s` is the same engine's prefill of the same prompt without any transfer, measured just before.
    `prefill_s` is P's first token in the measured request, `first_token_s` D's. `load_1m` is the machine's load average
    just before: above 2 on a machine of 2 cores somebody else was at work, and the figure is worth little. `slabs` is
    the number of slabs P sent, by codec; runs made before there were codecs have none.
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
    slabs: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Sample:
        """The sample of a results row; figures that follow from others are left out."""
        return cls(**{each.name: row[each.name] for each in fields(cls) if each.name in row})

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


def slabs_by_codec(timeline: Path, since_bytes: int) -> dict[str, int]:
    """Slabs posted in a producer's timeline from byte `since_bytes` on, by codec; empty where there is no timeline."""
    if not timeline.exists():
        return {}
    with timeline.open("rb") as file:
        file.seek(since_bytes)
        events = [json.loads(line) for line in file]
    return dict(Counter(event["codec"] for event in events if event["event"] == "posted"))


def _first_token_s(request: Any, since: float) -> float:
    assert request.t_first_token is not None, f"{request.request} ended with {request.finish_reason} and no token"
    return float(request.t_first_token) - since


class Contender:
    """Engines of one connector: one per namespace of the link, or a single one for `colocated`."""

    def __init__(self, entrant: Entrant, workload: Workload, link: ShapedLink, folder: Path) -> None:
        self.name = entrant.name
        self._link = link
        self._timeline = _timeline(entrant, "producer", folder)
        roles = ("producer",) if entrant.connector == COLOCATED else ("producer", "consumer")
        self._engines = [
            EngineProcess(_spec(entrant, role, side, workload, link, folder), folder / f"{entrant.label}-{role}.log")
            for side, role in enumerate(roles)
        ]
        self._pair = None
        if len(roles) > 1:
            self._pair = EnginePair(self._engines[0], self._engines[1], DIALECTS[entrant.connector])

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
        noted_bytes = self._timeline.stat().st_size if self._timeline.exists() else 0
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
            slabs=slabs_by_codec(self._timeline, noted_bytes),
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


def _timeline(entrant: Entrant, role: str, folder: Path) -> Path:
    return folder / f"{entrant.label}-{role}.jsonl"


def _spec(entrant: Entrant, role: str, side: int, workload: Workload, link: ShapedLink, folder: Path) -> EngineSpec:
    host, env, config = link.hosts[side], {}, None
    if entrant.connector != COLOCATED:
        dialect = DIALECTS[entrant.connector]
        timeline = {"timeline_path": str(_timeline(entrant, role, folder))}
        config = dialect.config(f"kv_{role}", host, "fail", {**workload.extra, **entrant.settings, **timeline})
        env = {**dialect.env(host), "UCX_NET_DEVICES": link.devices[side]}
    return EngineSpec(
        name=f"{entrant.label}-{role}",
        model=workload.model,
        dtype=workload.dtype,
        kv_transfer_config=config,
        max_num_batched_tokens=workload.chunk_tokens,
        max_model_len=workload.max_model_len,
        core=side,
        netns=link.namespaces[side],
        env=env,
    )
