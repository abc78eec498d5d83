"""`kv_transfer_params`: what requests ask for, and what is said of those that cannot be used."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pdkv_connector.adapters.vllm.params import Broken, Consume, Probe, Produce, announcement, offer, parse

STOCK_KEYS = {
    "do_remote_prefill", "do_remote_decode", "remote_engine_id", "remote_request_id", "remote_block_ids",
    "remote_host", "remote_port", "tp_size", "remote_num_tokens",
}  # fmt: skip
STOCK = {
    "do_remote_prefill": True, "remote_engine_id": "e", "remote_host": "10.0.0.1", "remote_port": 8000, "tp_size": 1,
}  # fmt: skip


def consume(**ours: Any) -> dict[str, Any]:
    return {"do_remote_prefill": True, "pdkv": {"transfer_id": "t", "endpoints": ["h:1"], **ours}}


@pytest.mark.parametrize("params", [None, {}, {"do_remote_prefill": False, "do_remote_decode": False}, {"pdkv": {}}])
def test_nothing_asked(params: dict[str, Any] | None) -> None:
    assert parse(params) is None


@pytest.mark.parametrize(
    ("params", "intent"),
    [
        ({"pdkv": {"probe": True}}, Probe()),
        ({"do_remote_decode": True}, Produce("")),
        ({"do_remote_decode": True, "do_remote_prefill": False, "pdkv": {"transfer_id": "t"}}, Produce("t")),
        (consume(), Consume("t", "", ("h:1",), 1, False)),
        (consume(digest=True), Consume("t", "", ("h:1",), 1, True)),
        (consume(endpoints=["a:1", "b:2"], tp_size=2), Consume("t", "", ("a:1", "b:2"), 2, False)),
        ({**STOCK, "pdkv": {"transfer_id": "t"}}, Consume("t", "e", ("10.0.0.1:8000",), 1, False)),
        ({**STOCK, **consume()}, Consume("t", "e", ("h:1",), 1, False)),
        ({**STOCK, "remote_port": "80", "pdkv": {"transfer_id": "t"}}, Consume("t", "e", ("10.0.0.1:80",), 1, False)),
        ({**STOCK, "remote_num_tokens": 3, "stranger": [], "pdkv": {"transfer_id": "t", "endpoints": ["h:1"]}},
         Consume("t", "e", ("h:1",), 1, False)),
    ],
)  # fmt: skip
def test_intents(params: dict[str, Any], intent: object) -> None:
    assert parse(params) == intent


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ("yes", r"kv_transfer_params='yes' is invalid: expected an object"),
        (["pdkv"], r"expected an object"),
        ({"pdkv": 3}, r"kv_transfer_params\['pdkv'\]=3 is invalid: Expected `object`"),
        ({"pdkv": {"transfer": "t"}}, r"unknown field `transfer`"),
        ({"pdkv": {"transfer_id": 5}}, r"Expected `str`, got `int` - at `\$\.transfer_id`"),
        ({"do_remote_decode": True, "pdkv": {"transfer_id": "t" * 257}}, r"transfer_id of 257 bytes is longer than"),
        ({"do_remote_decode": True, "pdkv": {"transfer_id": "é" * 200}}, r"transfer_id of 400 bytes"),
        (STOCK, r"name no transfer: set pdkv\.transfer_id on both legs"),
        ({"do_remote_prefill": True, "pdkv": {"transfer_id": "t"}}, r"t: .* name no producer: set pdkv\.endpoints"),
        (consume(endpoints="h:1"), r"Expected `array`, got `str`"),
        (consume(endpoints=["h" * 300]), r"length <= 256"),
        (consume(tp_size="two"), r"Expected `int`, got `str` - at `\$\.tp_size`"),
        ({**STOCK, **consume(), "tp_size": "two"}, r"transfer t: .* at `\$\.tp_size`"),
        ({**STOCK, **consume(), "remote_port": "x"}, r"transfer t: .* at `\$\.remote_port`"),
        ({**STOCK, **consume(), "remote_engine_id": "e" * 257}, r"length <= 256 - at `\$\.remote_engine_id`"),
        ({**STOCK, **consume(), "remote_host": ["h"]}, r"transfer t: .* at `\$\.remote_host`"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_says_why(params: Any, reason: str) -> None:
    intent = parse(params)
    assert isinstance(intent, Broken)
    assert re.search(reason, intent.reason), intent.reason


def test_reasons_stay_short() -> None:
    intent = parse({"pdkv": {"junk": "x" * 1_000_000}})
    assert isinstance(intent, Broken)
    assert len(intent.reason) < 1000


@pytest.mark.parametrize(
    ("block_ids", "shown"), [(([4, 5],), [4, 5]), (([4, 5], [6]), [[4, 5], [6]])], ids=["one group", "two groups"]
)
def test_an_offer_has_all_stock_keys_and_is_understood_by_the_consumer(
    block_ids: tuple[list[int], ...], shown: object
) -> None:
    announced = announcement("e", ["10.0.0.1:8000", "10.0.0.1:8001"], 2, 1)
    made = json.loads(json.dumps(offer(announced, "t", "r", block_ids, 33)))
    assert made.keys() == STOCK_KEYS | {"pdkv"}
    assert (made["remote_host"], made["remote_port"], made["tp_size"]) == ("10.0.0.1", 8000, 2)
    assert (made["remote_request_id"], made["remote_num_tokens"], made["remote_block_ids"]) == ("r", 33, shown)
    assert made["do_remote_prefill"] is True
    assert made["do_remote_decode"] is False
    assert parse(made) == Consume("t", "e", ("10.0.0.1:8000", "10.0.0.1:8001"), 2, False)


def test_an_address_with_colons_survives_the_stock_keys() -> None:
    made = offer(announcement("e", ["[fe80::1]:8000"], 1, 1), "t", "r", ([1],), 5)
    del made["pdkv"]["endpoints"]
    intent = parse(made)
    assert isinstance(intent, Consume)
    assert intent.endpoints == ("[fe80::1]:8000",)
