"""The arithmetic, the tables and the guards of the codec benchmark; its contenders are exercised by running it."""

from __future__ import annotations

import dataclasses
import importlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import bench_codec, codec_contenders, codec_report, kv_slabs
from benchmarks.codec_contenders import OnExponents, Ours, Peer
from benchmarks.codec_report import Row
from benchmarks.kv_slabs import SlabSet

ZLIB = Peer("zlib", lambda data: zlib.compress(data.tobytes(), 1), zlib.decompress)
OURS = Ours("split", 2, "bfloat16")
EVERY_PATTERN = SlabSet("all", "bfloat16", (np.arange(1 << 16, dtype=np.uint16).reshape(1, 2, 1, 512, 64),))
ROW = Row("split", "a", "bfloat16", 256, 2, 3_000_000_000, 10.5, 10.0, 11.0, 12.0, (1.0, 3.0, 2.0), (0.5, 0.5, 0.5))
OTHER = dataclasses.replace(ROW, data="b", raw_bytes=1_000_000_000, bits_k=8.0, bits_v=11.0, encode_s=(2.0,))
BOTH = [ROW, OTHER]


@pytest.mark.parametrize("contender", [ZLIB, OnExponents(ZLIB), OURS])
def test_every_bit_pattern_comes_back(contender: codec_contenders.Contender) -> None:
    bits = bench_codec.encoded_bits(contender, EVERY_PATTERN)
    assert len(bits) == 1
    assert 0 < bits[0] <= 16


def test_ours_takes_slabs_of_any_size_in_turn() -> None:
    for dtype in ("bfloat16", "float8_e4m3fn"):
        contender = Ours("pack4", 4, dtype)
        for num_tokens in (33, 1, 300):
            bits = np.random.default_rng(1).integers(0, 90, (1, 2, 1, num_tokens, 64)).astype(kv_slabs.UNITS[dtype])
            bench_codec.encoded_bits(contender, SlabSet("small", dtype, (bits,)))


def flipped(payload: bytes) -> bytes:
    data = bytearray(zlib.decompress(payload))
    data[4321] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("decompress", "message"),
    [
        (flipped, "lossy: all slab 0, decoded: byte 4321 is wrong"),
        (lambda payload: zlib.decompress(payload)[:-1], "byte 131071 is wrong"),
        (lambda payload: zlib.decompress(payload) + b"x", "byte 131072 is wrong"),
    ],
)
def test_a_lossy_contender_is_caught(decompress: Callable[[bytes], Any], message: str) -> None:
    with pytest.raises(bench_codec.NotLossless, match=message):
        bench_codec.encoded_bits(Peer("lossy", ZLIB.compress, decompress), EVERY_PATTERN)


def test_a_contender_that_changes_its_input_is_caught() -> None:
    slabs = SlabSet("all", "bfloat16", (EVERY_PATTERN.bits[0].copy(),))

    def compress(data: Any) -> bytes:
        payload = zlib.compress(data.tobytes(), 1)
        data[7] ^= 1
        return payload

    with pytest.raises(bench_codec.NotLossless, match="input: byte 7 is wrong"):
        bench_codec.encoded_bits(Peer("careless", compress, zlib.decompress), slabs)


def test_mean_and_ratio_count_each_plane_of_each_model_once() -> None:
    assert codec_report.mean_bits(BOTH) == 10.0
    assert codec_report.ratio(BOTH) == pytest.approx(1.6)
    assert codec_report.ratio([dataclasses.replace(ROW, elem_bytes=4)]) == pytest.approx(32 / 10.5)


def test_rate_is_all_bytes_over_the_sum_of_median_seconds() -> None:
    assert codec_report.rate([ROW], "encode") == pytest.approx(1.5)
    assert codec_report.rate(BOTH, "encode") == pytest.approx(1.0)
    assert codec_report.rate(BOTH, "decode") == pytest.approx(4.0)


def test_speed_table_names_what_was_not_measured() -> None:
    lines = codec_report.speed_table(BOTH, {"zipnn": "No module named 'zipnn'"}).splitlines()
    assert lines[0].startswith("| Codec | a K | a V | b K | b V | mean bits | ratio |")
    assert lines[2] == "| split | 10.00 | 11.00 | 8.00 | 11.00 | 10.00 | 1.600 | 1.00 | 4.00 |"
    assert lines[3].startswith("| zipnn | not measured: No module named 'zipnn' |")
    assert len({line.count("|") for line in lines}) == 1


def test_other_tables() -> None:
    lines = codec_report.synthetic_table(BOTH).splitlines()
    assert lines[2] == "| split | 12.00 | 1.50 | 6.00 | 12.00 | 0.50 | 2.00 |"
    lines = codec_report.dtype_table(
        [*BOTH, *(dataclasses.replace(row, contender="zstd -1") for row in BOTH)]
    ).splitlines()
    assert lines[2] == "| bfloat16, split | 1.600 | 1.455 | 2.000 | 1.455 | 10.00 | 1.600 |"
    assert lines[3].startswith("| bfloat16, zstd -1 |")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codec_contenders.FACTORIES, "absent", lambda _: importlib.import_module("no_such_package"))
    found, missing = codec_contenders.contenders("bfloat16")
    assert missing["absent"] == "No module named 'no_such_package'"
    assert {"split", "pack4"} <= {contender.name for contender in found}
    assert "absent" not in {contender.name for contender in found}


@pytest.mark.parametrize("num_tokens", [1, 256])
def test_synthetic_slabs(num_tokens: int) -> None:
    sets = {name: kv_slabs.synthetic(name, num_tokens) for name in kv_slabs.SYNTHETIC}
    assert {slabs.bits[0].shape for slabs in sets.values()} == {(6, 2, 3, num_tokens, 64)}
    assert {slabs.num_bytes for slabs in sets.values()} == {18 * 2 * 3 * num_tokens * 64 * 2}
    assert len(np.unique(sets["constant"].bits[0])) == 1
    calm, rest = (
        np.unique(part >> 7 & 0xFF).size
        for part in np.split(sets["misleading"].bits[0], [min(num_tokens, kv_slabs.CALM_TOKENS)], axis=3)
    )
    assert calm == 1
    assert rest == (256 if num_tokens == 256 else 0)


def test_slabs_tile_the_tokens_and_planes_come_apart() -> None:
    bits = np.arange(2 * 12 * 2 * 1 * 10 * 4, dtype=np.uint16).reshape(2, 12, 2, 1, 10, 4)
    slabs = list(kv_slabs._cut(bits, 4))
    assert len(slabs) == 2 * 2 * 2
    assert np.array_equal(slabs[1], bits[0, :6, :, :, 4:8])
    values = SlabSet("x", "bfloat16", tuple(slabs)).plane(1)
    assert np.array_equal(values.bits[1], bits[0, :6, 1:, :, 4:8])


def test_slabs_of_many_tokens_hold_one_layer() -> None:
    bits = np.zeros((1, 12, 2, 1, 1024, 1), np.uint16)
    assert [slab.shape for slab in kv_slabs._cut(bits, 1024)] == [(1, 2, 1, 1024, 1)] * 12


def test_eight_bit_scale_maps_amax_to_half_the_largest_value_layer_by_layer() -> None:
    values = np.ones((2, 2, 2, 1, 3, 4), np.float32)
    values[1, 0, 1, 0, 2, 3] = -8.0
    converted = kv_slabs._converted(values.view(np.uint32), "float8_e4m3fn")
    assert converted[0, 1, 0, 0, 0, 0] == 0x76, "224 where the largest is 1"
    assert converted[1, 0, 1, 0, 2, 3] == 0xF6, "-224 where the largest is -8"
    assert converted[0, 0, 1, 0, 0, 0] == 0x5E, "28, an eighth of it, in another text of the same layer and plane"


def test_picture(tmp_path: Path) -> None:
    codec_report.draw(tmp_path / "codec.png", [*BOTH, dataclasses.replace(ROW, contender="zstd -1")], "title")
    assert (tmp_path / "codec.png").read_bytes().startswith(b"\x89PNG")
