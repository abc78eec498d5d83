"""A prefill and a decode engine, stepped in turns until something is so."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cases.engine import Engine
from tests.cases.text import Text
from tests.unit.runtime.rank import wait_until

_numbers = itertools.count()

MAX_TOKENS = 3
DECODED = MAX_TOKENS
"""Tokens that a decode request runs through the model when all KV came: the prompt's last, and its own but the last."""


def new_transfer_id() -> str:
    """As a router names a transfer."""
    return f"x{next(_numbers)}"


@dataclass
class Pair:
    """`prefill` and `decode` share no memory and know each other only by what requests carry."""

    prefill: Engine
    decode: Engine

    def until(self, condition: Callable[[], bool], what: str, *engines: Engine) -> None:
        """Step the given engines, or both, until `condition` holds."""

        def turn() -> bool:
            for engine in engines or (self.prefill, self.decode):
                engine.step()
            return condition()

        wait_until(turn, what)

    # -- the two legs -------------------------------------------------------------------------------------------------

    def ask_prefill(self, text: Text, transfer_id: str = "", **sampling: Any) -> str:
        """The prefill leg; without a transfer id it is the stock one, whose answer names the transfer."""
        ours = {"pdkv": {"transfer_id": transfer_id}} if transfer_id else {}
        return self.prefill.add(text, {"do_remote_decode": True, "do_remote_prefill": False, **ours}, **sampling)

    def ask_decode(self, text: Text, transfer_id: str, **sampling: Any) -> str:
        """The decode leg when both are asked at once."""
        ours = {"transfer_id": transfer_id, "endpoints": [self.prefill.endpoint]}
        return self.decode.add(
            text, {"do_remote_prefill": True, "pdkv": ours}, **({"max_tokens": MAX_TOKENS} | sampling)
        )

    def params_of(self, prefill_id: str) -> dict[str, Any]:
        """What the prefill engine answered, as it comes out of a router."""
        self.until(lambda: prefill_id in self.prefill.answers, "answer of the prefill engine")
        params: dict[str, Any] = json.loads(json.dumps(self.prefill.answers[prefill_id].kv_transfer_params))
        return params

    def transfer(self, text: Text, **sampling: Any) -> str:
        """A whole request over both engines at once; returns the decode request's id."""
        transfer_id = new_transfer_id()
        self.ask_prefill(text, transfer_id)
        decode_id = self.ask_decode(text, transfer_id, **sampling)
        self.until_answered(decode_id)
        return decode_id

    def until_prefill_is_free(self) -> None:
        """The prefill engine's blocks are back while the decode engine stands still: no later word of it did that."""
        what = "release of the prefill engine's blocks"
        self.until(lambda: self.prefill.num_free == self.prefill.num_blocks, what, self.prefill)

    def until_begun(self, decode_id: str) -> None:
        """A decode request runs."""
        self.until(lambda: self.decode.num_computed[decode_id] > 0, "start of the decode request")

    def until_answered(self, decode_id: str) -> None:
        """A decode request ended."""
        self.until(lambda: decode_id in self.decode.answers, "answer of the decode engine")

    def until_released(self) -> None:
        """All blocks of both engines are back."""
        self.until(
            lambda: all(engine.num_free == engine.num_blocks for engine in (self.prefill, self.decode)),
            "release of all blocks",
        )
