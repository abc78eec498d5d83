"""The demo's verdict: what it shows, and that it can fail."""

import io
from pathlib import Path

from rich.console import Console

from pdkv_connector.cli.client import Reply
from pdkv_connector.cli.demo_report import Round, report
from pdkv_connector.telemetry.timeline import Chunk, Slab, Transfer


def _reply(tokens: list[int], transfer_id: str = "") -> Reply:
    return Reply(100.0, 102.5, tokens, prompt_tokens=4500, transfer_id=transfer_id)


def _transfer(num_bytes: int = 2**20) -> Transfer:
    slabs = {(0, 0): Slab(0, num_bytes, posted=101.0, landed=101.5, scattered=101.6)}
    slabs[0, 1] = Slab(1, num_bytes, posted=101.9, landed=102.1, scattered=102.2)
    return Transfer("T", [Chunk(0, 4500, 100.0, 102.0)], slabs, {"complete": 102.2})


def _report(one: Round, transfers: dict[str, Transfer], folder: Path) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), record=True, width=120)
    return report([one], transfers, folder / "timeline.png", console), console.export_text()


def test_equal_tokens_and_moved_kv_pass_with_every_figure_shown(tmp_path: Path) -> None:
    passed, text = _report(Round(_reply([1, 2], "T"), _reply([1, 2])), {"T": _transfer()}, tmp_path)
    assert passed
    for figure in ("4,500", "2.00", "2.50", "2.0", "50.0", "200", "yes"):
        assert figure in text, figure
    assert (tmp_path / "timeline.png").stat().st_size > 10_000


def test_a_different_token_fails_and_is_named(tmp_path: Path) -> None:
    passed, text = _report(Round(_reply([1, 7], "T"), _reply([1, 2])), {"T": _transfer()}, tmp_path)
    assert not passed
    assert "token 1 is 7 with a transfer and 2 without" in text


def test_a_missing_token_fails(tmp_path: Path) -> None:
    passed, text = _report(Round(_reply([1], "T"), _reply([1, 2])), {"T": _transfer()}, tmp_path)
    assert not passed
    assert "1 tokens with a transfer, 2 without" in text


def test_equal_tokens_without_a_transfer_fail(tmp_path: Path) -> None:
    round_without = Round(_reply([1, 2]), _reply([1, 2]))
    passed, text = _report(round_without, {}, tmp_path)
    assert not passed
    assert "no KV moved" in text
    assert not _report(round_without, {"T": _transfer()}, tmp_path)[0]
