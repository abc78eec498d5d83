"""`pdkv verify`: is a running pair right? The same KV on both engines, the same tokens with and without a transfer.

Stands in for the router: probes the prefill server, then sends each prompt to both servers at once, as the proxy does.
Every prompt begins differently and has a cache salt of its own, so that no prefix cache can stand in for a transfer.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import dataclass
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from pdkv_connector.cli import client
from pdkv_connector.cli.prompts import ship_log
from pdkv_connector.cli.verify_outcome import Outcome
from pdkv_connector.errors import PdkvError
from pdkv_connector.proxy import bodies

PROMPT_TOKENS = (40, 400, 1500)
EXTERNAL_HITS = re.compile(r"^vllm:external_prefix_cache_hits_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


def run(prefill: str, decode: str, num_tokens: int, console: Console) -> bool:
    """Print one table. True when KV moved and was right for every prompt."""
    prefill, decode = prefill.rstrip("/"), decode.rstrip("/")
    with console.status("probing the prefill server") as status:
        outcomes = asyncio.run(_outcomes(prefill, decode, num_tokens, status.update))
    console.print(_table(outcomes))
    _tell("[yellow]note[/]", [outcome.remark for outcome in outcomes], console)
    _tell("[bold red]FAIL[/]", [outcome.fault for outcome in outcomes], console)
    passed = not any(outcome.fault for outcome in outcomes)
    if passed:
        console.print(f"[bold green]OK[/] {decode} decodes from KV of {prefill}")
    return passed


def _tell(mark: str, messages: list[str], console: Console) -> None:
    """One line a message, however many prompts it is about."""
    for message in dict.fromkeys(filter(None, messages)):
        numbers = [str(number) for number, other in enumerate(messages, 1) if other == message]
        noun = "prompt" if len(numbers) == 1 else "prompts"
        console.print(f"{mark} {noun} {', '.join(numbers)}: {message}", soft_wrap=True)


async def _outcomes(prefill: str, decode: str, num_tokens: int, tell: Any) -> list[Outcome]:
    async with aiohttp.ClientSession() as http:
        probed = await _probe(http, prefill)
        pair = Pair(http, prefill, decode, probed)
        outcomes = []
        for number, length in enumerate(PROMPT_TOKENS, 1):
            tell(f"prompt {number} of {len(PROMPT_TOKENS)}: about {length} tokens, with and without a transfer")
            outcomes.append(await pair.outcome(length, num_tokens))
        return outcomes


@dataclass(frozen=True)
class Pair:
    """The two servers and what the first said about itself."""

    http: aiohttp.ClientSession
    prefill: str
    decode: str
    probed: dict[str, Any]

    async def outcome(self, prompt_tokens: int, num_tokens: int) -> Outcome:
        """Run one fresh prompt over both servers, then on the decode server alone."""
        body = {"prompt": ship_log(prompt_tokens, uuid.uuid4().hex), "max_tokens": num_tokens, "temperature": 0}
        before = await _loaded_tokens(self.http, self.decode)
        answer = await self._transferred({**body, "cache_salt": uuid.uuid4().hex})
        after = await _loaded_tokens(self.http, self.decode)
        local = await client.complete(self.http, self.decode, {**body, "cache_salt": uuid.uuid4().hex})
        return Outcome(
            prompt_tokens=answer["usage"]["prompt_tokens"],
            transferred=answer["choices"][0]["token_ids"],
            local=local["choices"][0]["token_ids"],
            prefill_digests=_digests(answer, "prefill_digests"),
            decode_digests=_digests(answer, "digests"),
            loaded_tokens=None if before is None or after is None else after - before,
        )

    async def _transferred(self, body: dict[str, Any]) -> dict[str, Any]:
        """The decode server's answer; its prefill leg has ended well."""
        transfer_id = uuid.uuid4().hex
        for_prefill = bodies.concurrent_prefill_params(transfer_id)
        for_decode = bodies.concurrent_decode_params(transfer_id, self.probed)
        for_decode["pdkv"]["digest"] = True
        to_prefill = bodies.prefill_body(body, for_prefill, chat=False)
        to_decode = bodies.decode_body(body, for_decode)
        try:
            async with asyncio.TaskGroup() as legs:
                legs.create_task(client.complete(self.http, self.prefill, to_prefill))
                answer = legs.create_task(client.complete(self.http, self.decode, to_decode))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return answer.result()


async def _probe(http: aiohttp.ClientSession, prefill: str) -> dict[str, Any]:
    params = (await client.complete(http, prefill, bodies.PROBE)).get("kv_transfer_params")
    if not isinstance(params, dict) or "pdkv" not in params:
        raise PdkvError(f"{prefill} does not answer a probe: start it with kv_connector PDKVConnector as a producer")
    return params


async def _loaded_tokens(http: aiohttp.ClientSession, url: str) -> int | None:
    try:
        async with http.get(f"{url}/metrics") as response:
            found = EXTERNAL_HITS.findall(await response.text())
    except (aiohttp.ClientError, TimeoutError):
        return None
    return int(sum(float(value) for value in found)) if found else None


def _digests(answer: dict[str, Any], side: str) -> list[str]:
    """One a layer over the transferred tokens; the decode engine reports its own and its producer's."""
    ours = (answer.get("kv_transfer_params") or {}).get("pdkv") or {}
    return list(ours.get(side) or [])


def _table(outcomes: list[Outcome]) -> Table:
    rows = Table(title="with a transfer, against the decode server alone", title_justify="left")
    for column in ("prompt tokens", "loaded tokens", "KV layers compared"):
        rows.add_column(column, justify="right")
    for column in ("KV equal", "tokens equal"):
        rows.add_column(column, justify="center")
    for one in outcomes:
        loaded = "?" if one.loaded_tokens is None else f"{one.loaded_tokens:,}"
        compared = str(min(len(one.prefill_digests), len(one.decode_digests)))
        words = {True: "[green]yes[/]", False: "[bold red]NO[/]", None: "[yellow]?[/]"}
        tokens = words[one.tokens_equal] if one.tokens_equal or one.fault else "[yellow]no[/]"
        rows.add_row(f"{one.prompt_tokens:,}", loaded, compared, words[one.kv_equal], tokens)
    return rows
