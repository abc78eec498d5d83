"""The demo's table, picture and verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pdkv_connector.cli import timeline_plot
from pdkv_connector.cli.client import Reply
from pdkv_connector.telemetry.timeline import Transfer

MIB = 2**20
NOTES = """\
first token: as the client sees it. alone: the same prompt on the prefill server, no transfer, no prefix-cache hit.
hidden: share of the KV bytes that had arrived when prefill ended. wait: from there until decode had all of it.\
"""


@dataclass(frozen=True)
class Round:
    """One prompt, answered twice: over both engines, and by one engine alone."""

    transferred: Reply
    colocated: Reply

    @property
    def tokens_equal(self) -> bool:
        return self.transferred.token_ids == self.colocated.token_ids

    def line(self) -> str:
        """Progress in one line."""
        equal = "tokens equal" if self.tokens_equal else "TOKENS DIFFER"
        times = f"first token {self.transferred.ttft_s:.2f} s, alone {self.colocated.ttft_s:.2f} s"
        return f"{self.transferred.prompt_tokens:,} tokens, {times}, {equal}"


def report(rounds: Sequence[Round], transfers: Mapping[str, Transfer], picture: Path, console: Console) -> bool:
    """Print table and verdict, draw the longest prompt's transfer. True when everything is as it should be."""
    console.print(table(rounds, transfers))
    console.print(NOTES, style="dim", soft_wrap=True)
    faults = _faults(rounds, transfers)
    for fault in faults:
        console.print(f"[bold red]FAIL[/] {fault}", soft_wrap=True)
    longest = max(rounds, key=lambda one: one.transferred.prompt_tokens).transferred
    if longest.transfer_id in transfers:
        timeline_plot.draw(transfers[longest.transfer_id], picture, longest.first_token_at)
        console.print(f"timeline   {picture}", soft_wrap=True)
    if not faults:
        console.print(f"[bold green]OK[/] all {len(rounds)} answers equal, all KV moved")
    return not faults


def table(rounds: Sequence[Round], transfers: Mapping[str, Transfer]) -> Table:
    """One row a prompt."""
    rows = Table(title="prefill and decode apart, against one server alone", title_justify="left")
    for column in (
        "prompt\ntokens",
        "prefill\ns",
        "first token\ns",
        "alone\ns",
        "KV moved\nMiB",
        "hidden\n%",
        "wait\nms",
    ):
        rows.add_column(column, justify="right")
    rows.add_column("tokens\nequal", justify="center")
    for one in rounds:
        rows.add_row(*_cells(one, transfers.get(one.transferred.transfer_id)))
    return rows


def _cells(one: Round, transfer: Transfer | None) -> list[str]:
    equal = "[green]yes[/]" if one.tokens_equal else "[bold red]NO[/]"
    ttft = [f"{one.transferred.ttft_s:.2f}", f"{one.colocated.ttft_s:.2f}"]
    start = f"{one.transferred.prompt_tokens:,}"
    if transfer is None or not transfer.chunks:
        return [start, "?", *ttft, "0", "?", "?", equal]
    hidden = "?" if transfer.hidden_share is None else f"{transfer.hidden_share:.1%}".removesuffix("%")
    wait = "?" if transfer.exposed_s is None else f"{transfer.exposed_s * 1e3:,.0f}"
    return [start, f"{transfer.prefill_s:.2f}", *ttft, f"{transfer.moved_bytes / MIB:,.1f}", hidden, wait, equal]


def _faults(rounds: Sequence[Round], transfers: Mapping[str, Transfer]) -> list[str]:
    faults = []
    for number, one in enumerate(rounds, 1):
        transfer = transfers.get(one.transferred.transfer_id)
        if not one.tokens_equal:
            faults.append(f"prompt {number}: {_first_difference(one)}")
        if transfer is None or not transfer.moved_bytes:
            faults.append(f"prompt {number}: no KV moved; the decode server prefilled it itself: see its log")
    return faults


def _first_difference(one: Round) -> str:
    pairs = zip(one.transferred.token_ids, one.colocated.token_ids, strict=False)
    for position, (got, expected) in enumerate(pairs):
        if got != expected:
            return f"token {position} is {got} with a transfer and {expected} without"
    return f"{len(one.transferred.token_ids)} tokens with a transfer, {len(one.colocated.token_ids)} without"
