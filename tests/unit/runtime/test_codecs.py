"""Coded slabs between two runtimes: bit for bit, whatever the other side's configuration, also when they do not fit."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pytest
from numpy.typing import NDArray

from pdkv_connector.errors import ConfigError
from pdkv_connector.runtime.calibration import normal_kv
from pdkv_connector.telemetry.stats import CodecStats
from tests.unit.runtime.conftest import OpenRank
from tests.unit.runtime.prompts import HEAD_DIM, NUM_HEADS, NUM_LAYERS, Prompt
from tests.unit.runtime.rank import Rank, toy_facts, wait_until
from tests.unit.runtime.roles import Decode, Prefill

ALL = ("raw", "split", "pack4")
SLOTS = {"slot_bytes": 64 << 10, "ring_bytes": 1 << 20}
NUM_TOKENS = 700


class SmoothPrompt(Prompt):
    """A prompt whose KV is distributed as a model's is, so that coding pays."""

    @cached_property
    def truth(self) -> NDArray[np.uint16]:
        shape = (NUM_LAYERS, 2, NUM_HEADS, self.num_tokens, HEAD_DIM)
        return normal_kv("bfloat16", 2, int(np.prod(shape))).reshape(shape)


@pytest.fixture
def pair(open_rank: OpenRank) -> tuple[Prefill, Decode]:
    """A producer that sends split, and a consumer that would send pack4."""
    prefill = open_rank("cpu_amx", 32, facts=toy_facts(codecs=ALL), codec="split", **SLOTS)
    return Prefill(prefill), Decode(open_rank("nhd", 16, facts=toy_facts(codecs=ALL), codec="pack4", **SLOTS))


def codec_stats(rank: Rank, codec: str) -> CodecStats:
    return next(stats for stats in rank.runtime.stats().codecs if stats.codec == codec)


def run(prefill: Prefill, decode: Decode, prompt: Prompt, digest: bool = False) -> None:
    decode.want(prompt, prefill, digest=digest)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    prefill.rank.wait_released(prompt)


@pytest.mark.parametrize("codec", [*ALL, "auto"])
@pytest.mark.parametrize("threads", [1, 2])
def test_each_codec_delivers_every_bit(open_rank: OpenRank, codec: str, threads: int) -> None:
    settings = {"facts": toy_facts(codecs=ALL), "codec": codec, "codec_threads": threads, **SLOTS}
    prefill, decode = Prefill(open_rank("cpu_amx", 32, **settings)), Decode(open_rank("nhd", 16, **settings))
    run(prefill, decode, SmoothPrompt(NUM_TOKENS))
    assert decode.faults() == []
    sent, received = prefill.rank.runtime.stats().sent, decode.rank.runtime.stats().received
    assert (sent.raw_bytes, sent.encoded_bytes) == (received.raw_bytes, received.encoded_bytes)
    assert (sent.ratio > 1.2) == (codec in ("split", "pack4"))


def test_the_producers_setting_decides(pair: tuple[Prefill, Decode]) -> None:
    prefill, decode = pair
    run(prefill, decode, SmoothPrompt(NUM_TOKENS))
    assert decode.faults() == []
    assert codec_stats(decode.rank, "split").decode_bytes > 0
    assert codec_stats(decode.rank, "pack4") == CodecStats("pack4")
    (peer,) = prefill.rank.runtime.stats().peers
    assert (peer.name, peer.codec, peer.reason) == ("nhd rank 0", "split", "set by the configuration")


def test_a_consumer_without_the_configured_codec_gets_raw(open_rank: OpenRank) -> None:
    prefill = Prefill(open_rank("cpu_amx", 32, facts=toy_facts(codecs=ALL), codec="split", **SLOTS))
    decode = Decode(open_rank("nhd", 16, facts=toy_facts(codecs=("raw",)), **SLOTS))
    run(prefill, decode, SmoothPrompt(NUM_TOKENS))
    assert decode.faults() == []
    assert codec_stats(decode.rank, "raw").decode_bytes > 0


def test_digests_are_of_the_kv_not_of_its_code(pair: tuple[Prefill, Decode]) -> None:
    prefill, decode = pair
    prompt = SmoothPrompt(NUM_TOKENS)
    run(prefill, decode, prompt, digest=True)
    wait_until(lambda: prompt.transfer_id in decode.rank.take().digests, "digests")  # they come with the last word
    local, remote = decode.rank.outcome.digests[prompt.transfer_id]
    assert local == remote
    assert len(local) == NUM_LAYERS


def test_kv_that_does_not_shrink_as_expected_is_sent_in_smaller_slabs(pair: tuple[Prefill, Decode]) -> None:
    """Slabs are planned for the ratio of smooth KV; this one's bits are random."""
    prefill, decode = pair
    for _ in range(2):
        run(prefill, decode, Prompt(NUM_TOKENS))
    assert decode.faults() == []
    assert codec_stats(prefill.rank, "split").overflows > 0


def test_smooth_kv_makes_fewer_slabs(pair: tuple[Prefill, Decode], open_rank: OpenRank) -> None:
    """A slot is paid for in encoded bytes."""
    raw, other = Prefill(open_rank("cpu_amx", 32, codec="raw", **SLOTS)), Decode(open_rank("nhd", 16, **SLOTS))
    for prefill, decode in (pair, (raw, other)):
        run_at_once(prefill, decode, SmoothPrompt(1900))
    assert pair[1].rank.num_slabs < 0.9 * other.rank.num_slabs


def run_at_once(prefill: Prefill, decode: Decode, prompt: Prompt) -> None:
    """All KV is there before it is asked for, so that slots alone divide it into slabs."""
    prefill.run(prompt)
    decode.want(prompt, prefill)
    decode.rank.wait_delivered(prompt)


def test_a_configured_codec_that_cannot_code_this_kv_is_refused_at_start(open_rank: OpenRank) -> None:
    with pytest.raises(ConfigError, match="codec='split' is not available"):
        open_rank(facts=toy_facts(codecs=("raw",)), codec="split")
