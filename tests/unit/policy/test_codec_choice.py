"""The codec follows the slowest stage, gives way to raw where it gains little, and does not flap."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdkv_connector.policy.codec_choice import DWELL_SLABS, QUIET_SLABS, CodecChoice, Speed, Wire, stages

GB = 1e9
RAW = Speed(10 * GB, 10 * GB, 1.0)
SPLIT = Speed(2 * GB, 3 * GB, 1.49)
PACK4 = Speed(3 * GB, 4 * GB, 1.33)
SPEEDS = {"raw": RAW, "split": SPLIT, "pack4": PACK4}
MUCH = 1 << 40
"""More KV than any wire here carries at once."""


def wire(bytes_per_s: float | None, waiting_bytes: int = MUCH, busy: float = 1.0, **measured: float) -> Wire:
    return Wire(bytes_per_s, busy, waiting_bytes, measured)


def chosen(way: Wire, speeds: dict[str, Speed] = SPEEDS) -> str:
    choice = CodecChoice()
    choice.decide(speeds, way)
    return choice.codec


def test_a_slow_link_takes_the_best_ratio() -> None:
    choice = CodecChoice()
    assert choice.decide(SPEEDS, wire(12.5e6))
    assert choice.codec == "split"
    assert choice.reason == "the wire is the slowest stage at 12.5 MB/s; split carries 18.6 MB/s of KV"


@pytest.mark.parametrize("rate", [1.75, 2.0, 3.0])
def test_a_wire_that_encoding_cannot_keep_up_with_takes_raw(rate: float) -> None:
    assert chosen(wire(rate * GB), {"raw": RAW, "split": SPLIT}) == "raw"


def test_a_fast_wire_takes_a_codec_that_is_faster_still() -> None:
    assert chosen(wire(1 * GB), {"raw": RAW, "split": Speed(3 * GB, 4 * GB, 1.5)}) == "split"


def test_a_codec_that_carries_less_than_was_predicted_is_given_up() -> None:
    """Over loopback, say, where encoding, copying and decoding share the same cores."""
    choice = CodecChoice()
    assert choice.decide(SPEEDS, wire(1 * GB, raw=1 * GB))
    codec = choice.codec
    slow = Wire(0.5 * GB, 1.0, MUCH, {"raw": 1 * GB, codec: 0.5 * GB})
    others = {name: speed for name, speed in SPEEDS.items() if name in ("raw", codec)}
    changes = [choice.codec for _ in range(2 * DWELL_SLABS) if choice.decide(others, slow)]
    assert changes == ["raw"]


def test_a_codec_that_was_tried_in_vain_is_not_tried_again_while_that_is_remembered() -> None:
    choice, tried = CodecChoice(), wire(1 * GB, raw=1 * GB, split=0.5 * GB, pack4=0.6 * GB)
    assert not any(choice.decide(SPEEDS, tried) for _ in range(100))
    assert choice.reason == "raw carried 1000.0 MB/s of KV, pack4 798.0"
    assert choice.decide(SPEEDS, wire(1 * GB, raw=1 * GB, pack4=0.6 * GB))


def test_the_middle_codec_wins_where_the_best_ratio_is_too_slow() -> None:
    slow_split = SPEEDS | {"split": Speed(0.9 * GB, 3 * GB, 1.49)}
    assert chosen(wire(1 * GB), slow_split) == "pack4"


def test_a_slow_decoder_at_the_peer_counts() -> None:
    assert chosen(wire(1 * GB)) == "split"
    assert chosen(wire(1 * GB), {"raw": RAW, "split": Speed(2 * GB, 0.9 * GB, 1.49)}) == "raw"
    assert chosen(wire(1 * GB), {"raw": RAW, "split": Speed(2 * GB, 0.0, 1.49)}) == "split", "0 is unknown"


def test_an_unmeasured_wire_takes_raw() -> None:
    assert chosen(wire(None)) == "raw"


@pytest.mark.parametrize(("busy", "expected"), [(0.2, "raw"), (0.79, "raw"), (0.9, "split")])
def test_a_wire_that_nothing_waits_for_takes_raw(busy: float, expected: str) -> None:
    assert chosen(wire(12.5e6, waiting_bytes=100_000, busy=busy)) == expected


def test_what_waits_counts_although_the_wire_was_idle() -> None:
    assert chosen(wire(12.5e6, waiting_bytes=2_000_000, busy=0.0)) == "split"
    assert chosen(wire(125e6, waiting_bytes=2_000_000, busy=0.0)) == "raw"


def test_a_coded_peer_that_is_no_longer_pressed_returns_to_raw_and_says_why() -> None:
    choice = CodecChoice()
    choice.decide(SPEEDS, wire(12.5e6))
    quiet = wire(12.5e6, waiting_bytes=0, busy=0.2)
    assert not any(choice.decide(SPEEDS, quiet) for _ in range(QUIET_SLABS))
    assert choice.decide(SPEEDS, quiet)
    assert (choice.codec, choice.reason) == ("raw", "nothing waits for the wire, which is busy 20% of the time")


def test_what_coding_saves_is_not_taken_for_an_idle_wire() -> None:
    """Raw KV would keep it busy for 1.49 times as long."""
    choice = CodecChoice()
    choice.decide(SPEEDS, wire(12.5e6))
    assert not any(choice.decide(SPEEDS, wire(12.5e6, waiting_bytes=0, busy=0.4)) for _ in range(100))
    assert any(choice.decide(SPEEDS, wire(12.5e6, waiting_bytes=0, busy=0.3)) for _ in range(100))


def test_two_changes_are_some_slabs_apart() -> None:
    choice, ways = CodecChoice(), (wire(12.5e6), wire(20 * GB))
    changes = [number for number in range(400) if choice.decide(SPEEDS, ways[number % 3 == 0])]
    assert len(changes) > 10
    assert min(later - earlier for earlier, later in itertools.pairwise(changes)) >= DWELL_SLABS


@pytest.mark.parametrize("goodput", [0.5e9, 1.0e9, 1.2e9, 1.35e9, 1.5e9, 1.6e9, 1.7e9, 1.75e9, 1.8e9, 2e9, 3e9])
@pytest.mark.parametrize("seed", range(5))
def test_noise_of_a_few_percent_changes_the_codec_once_at_most(goodput: float, seed: int) -> None:
    rng, choice = Random(seed), CodecChoice()

    def about(value: float) -> float:
        return value * rng.uniform(0.97, 1.03)

    changes = 0
    for _ in range(2000):
        speeds = {
            codec: Speed(about(speed.encode_bytes_per_s), speed.decode_bytes_per_s, speed.ratio)
            for codec, speed in (("raw", RAW), ("split", SPLIT))
        }
        changes += choice.decide(speeds, wire(about(goodput)))
    assert changes <= 1


def test_without_hysteresis_the_noise_would_change_it_often() -> None:
    rng, changes, last = Random(0), 0, "raw"
    for _ in range(2000):
        goodput = 1.75 * GB * rng.uniform(0.97, 1.03)
        rates = {"raw": goodput, "split": SPLIT.encode_bytes_per_s * rng.uniform(0.85, 0.91)}
        best = max(rates, key=rates.__getitem__)
        changes, last = changes + (best != last), best
    assert changes > 100


RATES = st.floats(1e3, 1e12)
SPEED = st.builds(Speed, st.one_of(st.just(0.0), RATES), st.one_of(st.just(0.0), RATES), st.floats(0.5, 4.0))
AGREED = st.dictionaries(st.sampled_from(("raw", "split", "pack4", "other")), SPEED, min_size=1)
WIRE = st.builds(
    Wire, st.one_of(st.none(), RATES), st.floats(0, 1), st.integers(0, MUCH),
    st.dictionaries(st.sampled_from(("raw", "split", "pack4", "gone")), RATES),
)  # fmt: skip


@given(st.lists(st.tuples(AGREED, WIRE), min_size=1, max_size=40))
def test_the_codec_is_always_an_agreed_one_with_a_reason(steps: list[tuple[dict[str, Speed], Wire]]) -> None:
    choice, last = CodecChoice(), "raw"
    for speeds, way in steps:
        changed = choice.decide(speeds, way)
        assert choice.codec in speeds
        assert changed == (choice.codec != last)
        assert choice.reason
        last = choice.codec


@given(AGREED, WIRE)
def test_the_first_choice_is_never_predicted_to_be_slower_than_raw(speeds: dict[str, Speed], way: Wire) -> None:
    speeds, way = {"raw": RAW} | speeds, replace(way, measured={})
    codec = chosen(way, speeds)
    rates = {name: min(stages(speed, way.bytes_per_s or 1e3).values()) for name, speed in speeds.items()}
    assert rates[codec] >= rates["raw"]


@pytest.mark.parametrize(("setting", "expected"), [("split", "split"), ("raw", "raw"), ("pack4", "raw")])
def test_a_configured_codec_is_taken_where_the_peer_has_it(setting: str, expected: str) -> None:
    choice, agreed = CodecChoice(), {"split": 0, "raw": 0}
    assert choice.force(setting, agreed) == (expected != "raw")
    assert choice.codec == expected
    assert ("does not have" in choice.reason) == (setting == "pack4")
    assert not choice.force(setting, agreed)
