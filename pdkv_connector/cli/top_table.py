"""How `pdkv top` looks: a row for each engine, in one table or two as the terminal is wide; peers; troubles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from pdkv_connector.cli.engine_view import WELL, EngineView

MB = 1e6
SHORT, WIDE = 20, 150
"""Most letters of an engine id where there is little room; columns from which on there is enough for one table."""
Cell = Callable[[EngineView], str]


@dataclass(frozen=True)
class Column:
    """A head and what stands below it for an engine that answers; `second` ones go into a table of their own."""

    head: str
    cell: Cell
    second: bool = False


def _vllm(name: str, unit: float = 1.0, suffix: str = "") -> Cell:
    return lambda engine: f"{(engine.now.total(name) or 0) * unit:,.0f}{suffix}"


def _rate(name: str) -> Cell:
    def cell(engine: EngineView) -> str:
        rate = engine.rate(name)
        return "?" if rate is None else _quiet(f"{rate / MB:,.1f}")

    return cell


def _number(name: str, unit: float = 1.0, digits: int = 0, style: str = "") -> Cell:
    return lambda engine: _quiet(f"{engine.value(name) * unit:,.{digits}f}", style)


def _for(sides: str, cell: Cell) -> Cell:
    """Blank for an engine that is on neither of `sides`."""
    return lambda engine: cell(engine) if set(sides) & set(engine.role) else ""


def _quiet(number: str, style: str = "") -> str:
    """Nothing to see at zero."""
    if not number.strip("0.,"):
        return f"[dim]{number}[/]"
    return f"[{style}]{number}[/]" if style else number


def _ratio(engine: EngineView) -> str:
    ratio = engine.value("compression_ratio", direction="sent") or engine.value(
        "compression_ratio", direction="received"
    )
    return f"{ratio:.2f}" if ratio else ""


def _mean(name: str) -> Cell:
    def cell(engine: EngineView) -> str:
        mean_s = engine.mean_s(name)
        return "" if mean_s is None else f"{mean_s:.2f}"

    return cell


COLUMNS = (
    Column("run", _vllm("vllm:num_requests_running")),
    Column("wait", _vllm("vllm:num_requests_waiting")),
    Column("KV\nused", _vllm("vllm:kv_cache_usage_perc", 100, "%")),
    Column("out\nMB/s", _for("P", _rate("sent_kv_bytes"))),
    Column("in\nMB/s", _for("D", _rate("received_kv_bytes"))),
    Column("ratio", _ratio),
    Column("backlog\nMB", _for("P", _number("backlog_bytes", 1 / MB, 1))),
    Column("leases", _for("P", _number("leases"))),
    Column("reserved\ntokens", _for("D", _number("reserved_tokens"))),
    Column("trans-\nfers", lambda engine: _quiet(f"{engine.num_well:,.0f}"), second=True),
    Column("not\ndone", lambda engine: _quiet(f"{engine.num_badly:,.0f}", "yellow"), second=True),
    Column("exposed\nmean s", _for("P", _mean("exposed_seconds")), second=True),
    Column("transfer\nmean s", _for("D", _mean("transfer_seconds")), second=True),
    Column("sent\nagain", _for("P", _number("resent_slabs", style="yellow")), second=True),
    Column("dam-\naged", _for("D", _number("damaged_slabs", style="yellow")), second=True),
    Column("recom-\nputed", _for("D", _number("recomputes", style="yellow")), second=True),
    Column("re-\nfused", _number("refusals", style="yellow"), second=True),
)


def screen(engines: Sequence[EngineView], head: str, width: int) -> RenderableType:
    """Everything, for a terminal of `width` columns."""
    groups = (COLUMNS,) if width >= WIDE else ([c for c in COLUMNS if not c.second], [c for c in COLUMNS if c.second])
    tables = [_engines(engines, columns, width) for columns in groups] + [_peers(engines, width)]
    parts: list[RenderableType] = [head]
    for table in tables:
        parts += ["", table] if table.row_count else []
    notes = list(_notes(engines))
    return Group(*parts, *([""] if notes else []), *notes)


def _table(width: int, *names: str) -> Table:
    """Names give way where there is no room, numbers never."""
    gap = 1 if width >= WIDE else 0
    rows = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name in names:
        rows.add_column(name, overflow="ellipsis", vertical="bottom")
    return rows


def _short(peer: str) -> str:
    """Engine ids are long where nobody chose them; their beginning tells them apart."""
    engine, _, rank = peer.rpartition(" rank ")
    return f"{engine[:12]}… rank {rank}" if len(engine) > SHORT else peer


def _engines(engines: Sequence[EngineView], columns: Sequence[Column], width: int) -> Table:
    rows = _table(width, "engine")
    rows.add_column("role", no_wrap=True, vertical="bottom")
    for column in columns:
        rows.add_column(column.head, justify="right", no_wrap=True, vertical="bottom")
    for engine in engines:
        if engine.fault:
            rows.add_row(escape(engine.name), "[bold red]down[/]")
        else:
            rows.add_row(escape(engine.name), engine.role, *(column.cell(engine) for column in columns))
    return rows


def _peers(engines: Sequence[EngineView], width: int) -> Table:
    """One row for each rank that KV goes to."""
    rows = _table(width, "from", "to")
    for name in ("goodput\nMB/s", "codec", "because"):
        rows.add_column(name, justify="right" if name.startswith("goodput") else "left", no_wrap=True)
    for engine in (engine for engine in engines if not engine.fault):
        goodput = engine.counted("goodput_bytes_per_second", "rank", "peer")
        choices = sorted(engine.counted("codec", "rank", "peer", "codec", "cause"))
        several = len({rank for rank, *_ in choices}) > 1
        for rank, peer, codec, cause in choices:
            name = f"{engine.name} rank {rank}" if several else engine.name
            speed = goodput.get((rank, peer))
            speed_text = "?" if speed is None else f"{speed / MB:,.1f}"
            rows.add_row(
                escape(name),
                escape(peer if width >= WIDE else _short(peer)),
                speed_text,
                codec,
                cause.replace("_", " "),
            )
    return rows


def _notes(engines: Sequence[EngineView]) -> Iterator[str]:
    """One line for each engine and kind of trouble, with its causes."""
    for engine in engines:
        name = escape(engine.name)
        if engine.fault:
            yield f"[bold red]{name}[/] {escape(engine.fault)}"
            continue
        for what, told in (
            ("not delivered", _causes(engine, "transfers", "outcome")),
            ("recomputed", _causes(engine, "recomputes", "cause")),
            ("requests failed", _causes(engine, "failed_requests", "cause")),
            ("requests without transfer", _causes(engine, "requests_without_transfer", "cause")),
            ("refusals", _causes(engine, "refusals", "about", "cause")),
            ("strangers refused", _causes(engine, "strangers_refused")),
            ("malformed messages", _causes(engine, "rejected_frames")),
        ):
            if told:
                yield f"[yellow]{name}[/] {what}: {told}"


def _causes(engine: EngineView, name: str, *labels: str) -> str:
    causes = {cause: number for cause, number in engine.counted(name, *labels).items() if not set(cause) & set(WELL)}
    told = (f"{' '.join(cause).replace('_', ' ')} {number:,.0f}" for cause, number in sorted(causes.items()))
    return escape(", ".join(told).strip())
