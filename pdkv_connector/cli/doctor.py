"""`pdkv doctor`: one line a check, one line a fault with its fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console
from rich.table import Table

from pdkv_connector.cli import doctor_host, doctor_keys, doctor_packages, doctor_transport
from pdkv_connector.cli.checks import Finding, fault

Check = Callable[[], Iterable[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("python", doctor_packages.python),
    ("packages", doctor_packages.packages),
    ("entry points", doctor_packages.entry_points),
    ("configuration", doctor_host.configuration),
    ("ports", doctor_host.ports),
    ("keys", doctor_keys.keys),
    ("transports", doctor_transport.transports),
    ("devices", doctor_host.devices),
)
MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "fault": "[bold red]FAULT[/]"}


def run(console: Console) -> bool:
    """Run every check and print the table. True when there is no fault."""
    findings: list[Finding] = []
    with console.status("") as status:
        for name, check in CHECKS:
            status.update(f"checking {name}")
            findings += _findings(name, check)
    console.print(_table(findings))
    faults = [finding for finding in findings if finding.state == "fault"]
    for finding in faults:
        console.print(f"[bold red]{finding.name}[/]: {finding.detail}: {finding.fix}", soft_wrap=True)
    if not faults:
        console.print("[bold green]OK[/] nothing found that would keep a transfer from working here")
    return not faults


def _findings(name: str, check: Check) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:  # noqa: BLE001 - a check that breaks is a finding, and the others still run
        return [fault(name, f"the check itself failed ({type(error).__name__}: {error})", "report it")]


def _table(findings: Iterable[Finding]) -> Table:
    rows = Table(box=None, pad_edge=False)
    for column in ("check", "", "found"):
        rows.add_column(column, overflow="fold")
    for finding in findings:
        rows.add_row(finding.name, MARKS[finding.state], finding.detail)
    return rows
