"""Everything engine tests share: models, engines by name, their timelines, reference tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdkv_connector.cli.models import ensure_model
from tests.engines.rig.child_process import EngineDied
from tests.engines.rig.dialect import IMPATIENT, Dialect
from tests.engines.rig.pair import EnginePair
from tests.engines.rig.process import EngineProcess, wait_until
from tests.engines.rig.shelf import EngineShelf
from tests.engines.rig.spec import EngineSpec
from tests.engines.rig.timeline import Timeline

HOST = "127.0.0.1"
CHUNK_TOKENS = 256
BLOCK_TOKENS = 128
MAX_TOKENS = 8
RELEASE_S = 40.0
LOWEST_TOKEN, HIGHEST_TOKEN = 1_000, 40_000


def make_prompt(num_tokens: int, seed: int = 0) -> list[int]:
    """Token ids valid for every test model, the same at every call."""
    source = random.Random(f"{num_tokens}/{seed}")
    return [source.randrange(LOWEST_TOKEN, HIGHEST_TOKEN) for _ in range(num_tokens)]


@dataclass
class Testbed:
    """Hands out engines; names a spec once so that tests share the process."""

    __test__ = False

    folder: Path
    shelf: EngineShelf
    dialect: Dialect
    _references: dict[tuple[str, str, tuple[int, ...], int], list[int]] = field(default_factory=dict)

    def spec(
        self,
        role: str,
        model: str,
        dtype: str = "float32",
        label: str = "",
        policy: str = "recompute",
        extra: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        args: dict[str, Any] | None = None,
    ) -> EngineSpec:
        """An engine of `role` "producer" or "consumer"; `label` tells variants apart."""
        name = "-".join(filter(None, (self.dialect.name, role, model, dtype, label)))
        settings = {**IMPATIENT, "timeline_path": str(self._timeline_path(name)), **(extra or {})}
        return EngineSpec(
            name=name,
            model=ensure_model(model),
            dtype=dtype,
            kv_transfer_config=self.dialect.config(f"kv_{role}", HOST, policy, settings),
            max_num_batched_tokens=CHUNK_TOKENS,
            core=0 if role == "producer" else 1,
            env={**self.dialect.env(HOST), **(env or {})},
            args=args or {},
        )

    def _timeline_path(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def pair(self, prefill: EngineSpec, decode: EngineSpec) -> EnginePair:
        """Both engines, running, with empty prefix caches; new ones if a failed test has left blocks in use."""
        pair = EnginePair(*self.shelf.get(prefill, decode), self.dialect)
        try:
            pair.reset()
        except (TimeoutError, EngineDied):
            self.shelf.discard(pair.prefill, pair.decode)
            pair = EnginePair(*self.shelf.get(prefill, decode), self.dialect)
        return pair

    def default_pair(self, model: str, dtype: str = "float32") -> EnginePair:
        """The pair most tests share."""
        return self.pair(self.spec("producer", model, dtype), self.spec("consumer", model, dtype))

    def timeline(self, engine: EngineProcess) -> Timeline:
        """What the engine's connector records."""
        return Timeline(self._timeline_path(engine.spec.name))

    def reference(self, engine: EngineProcess, prompt: list[int], max_tokens: int = MAX_TOKENS) -> list[int]:
        """Tokens of the same engine without any transfer, from an empty prefix cache, which it leaves empty."""
        spec = engine.spec
        key = (spec.model.name, spec.dtype, tuple(prompt), max_tokens)
        if key not in self._references:
            engine.reset_prefix_cache()
            self._references[key] = engine.generate(prompt, max_tokens).token_ids
            engine.reset_prefix_cache()
        return self._references[key]


def assert_released(*engines: EngineProcess, timeout_s: float = RELEASE_S) -> None:
    """Every block is back in the pool and the scheduler holds no request, within a bound."""
    for engine in engines:
        all_blocks = engine.facts["num_blocks"] - 1  # the null block is never free

        def released(engine: EngineProcess = engine, all_blocks: int = all_blocks) -> bool:
            return engine.num_requests() == 0 and engine.free_blocks() == all_blocks

        wait_until(released, f"release of all {all_blocks} blocks of {engine.spec.name}", timeout_s)


def assert_serves(testbed: Testbed, pair: EnginePair) -> None:
    """A fresh transfer over the pair arrives and gives the right tokens: what happened before did no lasting harm."""
    prompt = make_prompt(2 * BLOCK_TOKENS + 5, seed=97)
    reference = testbed.reference(pair.decode, prompt)
    pair.reset()
    outcome = pair.transfer(prompt, MAX_TOKENS, "sequential")
    assert outcome.decode.token_ids == reference
    assert outcome.decode.num_computed == MAX_TOKENS
    pair.reset()
