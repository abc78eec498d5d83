"""`pdkv`: each command imports what it needs when it runs, so that help is quick and needs no engine."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

MISSING = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
if MISSING:
    sys.exit(f"pdkv: missing {', '.join(MISSING)}: pip install 'pdkv-connector[cli]'")

import typer  # noqa: E402

app = typer.Typer(help="Streaming KV transfer between prefill and decode engines.", no_args_is_help=True)
keys = typer.Typer(
    help="Keys of the control channel: a folder that is the same on every machine. More: SECURITY.md.",
    no_args_is_help=True,
)
app.add_typer(keys, name="keys")

DEMO_DIR, ENGINES_FILE = Path("pdkv-demo"), "engines.txt"
KeysDir = Annotated[Path, typer.Argument(help="The folder that keys_dir (PDKV_KEYS_DIR) names.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for logs, timelines and the picture.")] = DEMO_DIR,
    model: Annotated[str, typer.Option(help="smollm2, or gemma3 (sliding windows).")] = "smollm2",
    tokens: Annotated[int, typer.Option(min=1, max=512, help="Tokens to generate for each prompt.")] = 24,
    prompt_tokens: Annotated[
        list[int] | None, typer.Option(min=32, max=7500, help="About how long a prompt; repeat for several.")
    ] = None,
) -> None:
    """Run a prefill server, a decode server and the proxy here and measure them against one server alone."""
    _needs("cli", "aiohttp", "matplotlib")
    _needs("vllm", "vllm", "transformers")
    from pdkv_connector.cli.demo import DemoPlan, run

    lengths = tuple(prompt_tokens) if prompt_tokens else DemoPlan.prompt_tokens
    _finish(lambda console: run(DemoPlan(out, lengths, tokens, model, ENGINES_FILE), console))


@app.command()
def doctor() -> None:
    """Check this machine: versions, entry points, transports that really pass bytes, ports, devices."""
    from pdkv_connector.cli.doctor import run

    _finish(run)


@app.command()
def verify(
    prefill: Annotated[str, typer.Option(help="URL of the prefill server.")],
    decode: Annotated[str, typer.Option(help="URL of the decode server.")],
    tokens: Annotated[int, typer.Option(min=1, max=512, help="Tokens to generate for each prompt.")] = 16,
) -> None:
    """Check a running pair: the same KV on both engines, the same tokens with and without a transfer."""
    _needs("cli", "aiohttp")
    from pdkv_connector.cli.verify import run

    _finish(lambda console: run(prefill, decode, tokens, console))


@app.command()
def top(
    urls: Annotated[
        list[str] | None, typer.Argument(help="URLs of engines; none: those of a running `pdkv demo`.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and exit; 1 when an engine is down.")] = False,
) -> None:
    """Watch running engines: what moves between them, what waits, what went wrong."""
    _needs("cli", "aiohttp", "prometheus_client")
    from pdkv_connector.cli.top import run

    _finish(lambda console: run(urls or [], DEMO_DIR / ENGINES_FILE, interval, once, console))


@keys.command("create")
def create_key(folder: KeysDir) -> None:
    """Make this cluster's key or, where there is one, a standby to change to."""
    from pdkv_connector.cli.keys import create

    _finish(lambda console: create(folder, console))


@keys.command("show")
def show_keys(folder: KeysDir) -> None:
    """Check the files and print what tells the keys apart: equal on every machine, and no secret."""
    from pdkv_connector.cli.keys import show

    _finish(lambda console: show(folder, console))


@keys.command("swap")
def swap_keys(folder: KeysDir) -> None:
    """Make the standby key the active one, once every engine has both."""
    from pdkv_connector.cli.keys import swap

    _finish(lambda console: swap(folder, console))


@keys.command("drop")
def drop_key(folder: KeysDir) -> None:
    """Remove the standby key, once no engine uses it as its active one."""
    from pdkv_connector.cli.keys import drop

    _finish(lambda console: drop(folder, console))


def _needs(extra: str, *modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        _fail(f"this command needs {', '.join(missing)}: pip install 'pdkv-connector[{extra}]'")


def _finish(command: Callable[[Console], bool]) -> None:
    """Run `command`; exit 0 when it returns True, 1 when False, 1 with one line when it raises."""
    from rich.console import Console

    from pdkv_connector.errors import PdkvError

    try:
        passed = command(Console(highlight=False))
    except PdkvError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted", code=130)
    raise typer.Exit(0 if passed else 1)


def _fail(message: str, code: int = 1) -> NoReturn:
    typer.secho(f"pdkv: {message}", err=True, fg="red")
    raise typer.Exit(code)
