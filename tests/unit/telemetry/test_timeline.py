"""Reading what workers wrote, and the sums and the picture made of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdkv_connector.cli.timeline_plot import draw, headline
from pdkv_connector.errors import PdkvError
from pdkv_connector.telemetry import timeline
from pdkv_connector.telemetry.timeline import Transfer


def _event(side: str, event: str, t: float, **details: Any) -> str:
    return json.dumps({"t": t, "side": side, "event": event, "transfer_id": "T", **details}) + "\n"


def _slab(seq: int, posted: float, landed: float, num_bytes: int) -> tuple[str, str]:
    place = {"seq": seq, "layers": [0, 4], "tokens": [0, 64], "bytes": num_bytes}
    arrival = _event("consumer", "landed", landed, **place) + _event("consumer", "scattered", landed + 0.01, seq=seq)
    return _event("producer", "posted", posted, **place) + _event("producer", "written", posted, seq=seq), arrival


def _files(folder: Path) -> list[Path]:
    """Two chunks, 10.0 to 12.0; three slabs, of which the last, 200 of 1,000 bytes, lands after prefill."""
    slabs = [_slab(0, 10.5, 10.6, 500), _slab(1, 11.0, 11.9, 300), _slab(2, 11.9, 12.1, 200)]
    chunks = [
        _event("producer", "chunk", 11.0, tokens=[0, 64], t_start=10.0, t_stop=11.0),
        _event("producer", "chunk", 12.0, tokens=[64, 100], t_start=11.0, t_stop=12.0),
    ]
    producer, consumer = folder / "producer.jsonl", folder / "consumer.jsonl"
    producer.write_text(_event("producer", "queued", 9.0) + "".join(sent for sent, _ in slabs) + "".join(chunks))
    consumer.write_text("".join(arrival for _, arrival in slabs) + _event("consumer", "complete", 12.5))
    return [producer, consumer]


def _transfer(paths: list[Path]) -> Transfer:
    return timeline.read(paths)["T"]


def test_sums_of_one_transfer(tmp_path: Path) -> None:
    transfer = _transfer(_files(tmp_path))
    assert transfer.prefill_s == 2.0
    assert transfer.moved_bytes == 1000
    assert transfer.hidden_share == 0.8
    assert transfer.exposed_s == 0.5
    assert [(chunk.start, chunk.stop) for chunk in transfer.chunks] == [(0, 64), (64, 100)]


def test_a_slab_sent_twice_counts_once_at_its_first_arrival(tmp_path: Path) -> None:
    paths = _files(tmp_path)
    again = _event("consumer", "landed", 12.4, seq=0, layers=[0, 4], tokens=[0, 64], bytes=500)
    with paths[1].open("a") as file:
        file.write(again)
    transfer = _transfer(paths)
    assert (transfer.moved_bytes, transfer.hidden_share) == (1000, 0.8)


def test_a_slab_that_never_landed_did_not_move(tmp_path: Path) -> None:
    producer, consumer = _files(tmp_path)
    consumer.write_text("")
    transfer = _transfer([producer, consumer])
    assert (transfer.moved_bytes, transfer.hidden_share, transfer.exposed_s) == (0, None, None)
    assert "did not complete" in headline(transfer)


def test_ranks_number_their_slabs_independently(tmp_path: Path) -> None:
    path = tmp_path / "consumer.jsonl"
    path.write_text("".join(_event("consumer", "landed", 1.0, seq=0, bytes=7, rank=rank) for rank in (0, 1)))
    assert _transfer([path]).moved_bytes == 14


def test_a_line_still_being_written_is_left_out_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "producer.jsonl"
    path.write_text(_event("producer", "queued", 1.0) + '{"t": 2.0, "si')
    assert timeline.read([path])["T"].milestones == {"queued": 1.0}
    path.write_text('{"t": 2.0}\n' + _event("producer", "queued", 1.0))
    with pytest.raises(PdkvError, match=r"producer\.jsonl line 1"):
        timeline.read([path])


def test_a_transfer_without_chunks_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PdkvError, match="T has no prefill chunk"):
        _ = _transfer(_files(tmp_path)[1:]).prefill_s


def test_the_picture_shows_chunks_and_slabs(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    transfer = _transfer(_files(tmp_path))
    draw(transfer, tmp_path / "with.png", first_token_at=12.7)
    transfer.slabs.clear()
    draw(transfer, tmp_path / "without.png", first_token_at=12.7)
    with_slabs, without = (image.imread(tmp_path / name) for name in ("with.png", "without.png"))
    orange = [((abs(p[..., :3] - (0.867, 0.518, 0.322)).max(axis=-1)) < 0.02).sum() for p in (with_slabs, without)]
    assert orange[0] > orange[1] + 500  # the legend alone has some
    assert "100 prompt tokens" in headline(_transfer(_files(tmp_path)))
    assert "80.0% had arrived" in headline(_transfer(_files(tmp_path)))
