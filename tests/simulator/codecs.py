"""Codecs of the simulation: a slab of any size up to its KV's, chosen by nobody's reason."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from pdkv_connector.session import actions as act
from pdkv_connector.session.codec_advisor import Advice, Load
from tests.simulator.shape import BYTES_PER_TOKEN_HEAD

MAX_PREDICTED_S = 9.0


class Whims:
    """Advises one codec or the other, much KV or little, and now and then to wait."""

    def __init__(self, rng: Random, whims: float) -> None:
        self._rng = rng
        self._whims = whims

    def advise(self, leg: act.LegKey, decoders: Mapping[str, int], load: Load, now: float) -> Advice | None:
        assert {"split", "raw"} == set(decoders)
        if self._rng.random() >= self._whims:
            return Advice("raw", load.slot_bytes)
        if load.moving_bytes and self._rng.random() < 0.2:
            return None
        expansion = self._rng.choice((0.0, 1.0, 1.5, 3.0, 9.0))
        return Advice("split", int(expansion * load.slot_bytes))

    def predicted_s(self, leg: act.LegKey, num_bytes: int) -> float:
        return self._rng.uniform(0.0, MAX_PREDICTED_S) if num_bytes and self._rng.random() < self._whims else 0.0


def encoded_bytes(rng: Random, gather: act.Gather) -> int:
    """How long the payload is: as long as its KV when raw, or when coding does not pay."""
    raw_bytes = len(gather.layers) * len(gather.tokens) * len(gather.heads) * BYTES_PER_TOKEN_HEAD
    return raw_bytes if gather.codec == "raw" else rng.randint(1, raw_bytes)
