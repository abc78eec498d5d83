"""A record follows what slabs show, and plans slabs that fit."""

from __future__ import annotations

import pytest

from pdkv_connector.policy.codec_record import CodecRecord

MIB = 1 << 20


def test_speed_and_ratio_follow_the_slabs() -> None:
    record = CodecRecord(5e9, 7e9, 3.0)
    for _ in range(100):
        record.encoded(3 * MIB, 2 * MIB, 3 * MIB / 2e9)
        record.decoded(3 * MIB, 3 * MIB / 4e9)
    assert record.encode_bytes_per_s == pytest.approx(2e9, rel=0.01)
    assert record.decode_bytes_per_s == pytest.approx(4e9, rel=0.01)
    assert record.ratio == pytest.approx(1.5, rel=0.01)


def test_small_slabs_weigh_little() -> None:
    record = CodecRecord(2e9, 3e9, 1.5)
    for _ in range(20):
        record.encoded(10_000, 10_000, 1e-3)
    assert record.encode_bytes_per_s > 1.9e9


def test_slabs_are_planned_to_just_fit() -> None:
    assert 1.3 < CodecRecord(2e9, 3e9, 1.5).expansion < 1.5
    assert CodecRecord(2e9, 3e9, 1.0).expansion == 1.0
    assert CodecRecord(2e9, 3e9, 0.8).expansion == 1.0, "KV of a slot always fits"


def test_after_an_overflow_less_is_planned_and_slowly_more_again() -> None:
    record = CodecRecord(2e9, 3e9, 1.5)
    before = record.expansion
    record.overflowed()
    after = record.expansion
    assert after < before
    for _ in range(100):
        record.encoded(3 * MIB, 2 * MIB, 1e-3)
    assert record.expansion > (after + before) / 2


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.15])
def test_few_slabs_overflow_although_their_ratios_differ(spread: float) -> None:
    record, overflows = CodecRecord(2e9, 3e9, 1.5), 0
    for number in range(400):
        ratio = 1.5 * (1 + spread * (number * 7 % 11 - 5) / 5)
        if record.expansion > ratio:
            record.overflowed()
            overflows += 1
        record.encoded(2 * MIB, int(2 * MIB / ratio), 1e-3)
    assert overflows < 40
