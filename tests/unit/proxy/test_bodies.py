"""The pure part: what is sent to whom."""

import copy
from typing import Any

import pytest

from pdkv_connector.errors import ConfigError
from pdkv_connector.policy.round_robin import RoundRobin
from pdkv_connector.proxy.bodies import decode_body, local_reason, prefill_body
from pdkv_connector.proxy.config import ProxyConfig


def test_prefill_keeps_what_makes_the_prompt_and_drops_what_shapes_the_output() -> None:
    prompt = {"model": "m", "prompt": [1, 2], "cache_salt": "s", "truncate_prompt_tokens": 9, "vllm_xargs": {"h": 1}}
    output = {"n": 1, "min_tokens": 5, "stop": ["."], "logprobs": 2, "echo": True, "stream_options": {"x": True}}
    body: dict[str, Any] = prompt | output | {"max_tokens": 90, "stream": True}
    before = copy.deepcopy(body)
    sent = prefill_body(body, {"a": 1}, chat=False)
    assert sent == prompt | {"max_tokens": 1, "stream": False, "kv_transfer_params": {"a": 1}}
    assert body == before


def test_echo_of_a_chat_is_about_its_prompt_and_stays() -> None:
    assert prefill_body({"messages": [], "echo": True}, {}, chat=True)["echo"] is True


def test_decode_gets_the_body_unchanged_but_for_the_transfer() -> None:
    body = {"prompt": "x", "max_tokens": 5, "kv_transfer_params": {"remote_host": "evil"}}
    assert decode_body(body, {"a": 1}) == {"prompt": "x", "max_tokens": 5, "kv_transfer_params": {"a": 1}}
    assert decode_body(body, None) == {"prompt": "x", "max_tokens": 5}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"prompt": "x"}, None),
        ({"prompt": [1, 2, 3]}, None),
        ({"prompt": ["only one"]}, None),
        ({"prompt": [[1, 2, 3]]}, None),
        ({"prompt": "x", "n": 1, "best_of": 1, "echo": True}, None),
        ({"prompt": "x", "logprobs": 5}, None),
        ({"prompt": ["a", "b"]}, "several_prompts"),
        ({"prompt": [[1], [2]]}, "several_prompts"),
        ({"prompt": "x", "n": 2}, "several_sequences"),
        ({"prompt": "x", "best_of": 2}, "several_sequences"),
        ({"prompt": "x", "use_beam_search": True}, "several_sequences"),
        ({"prompt": "x", "prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt": "x", "echo": True, "logprobs": 0}, "echo"),
        ({"prompt": "x", "echo": True, "max_tokens": 0}, "echo"),
    ],
)
def test_local_reason(body: dict[str, Any], reason: str | None) -> None:
    assert local_reason(body, chat=False) == reason


def test_echo_with_logprobs_in_a_chat_needs_no_local_prefill() -> None:
    assert local_reason({"messages": [], "echo": True, "logprobs": True}, chat=True) is None


def test_round_robin_takes_turns_and_skips_the_unhealthy() -> None:
    turns = RoundRobin(["a", "b", "c"])
    assert [turns.pick({"a", "b", "c"}) for _ in range(4)] == ["a", "b", "c", "a"]
    assert [turns.pick({"a", "c"}) for _ in range(3)] == ["c", "a", "c"]
    assert turns.pick(set()) is None
    assert turns.pick({"b"}) == "b"
    assert RoundRobin([]).pick({"a"}) is None


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"prefill": (), "decode": ("http://h:1",)}, "--prefill"),
        ({"prefill": ("h:1",), "decode": ("http://h:2",)}, "h:1"),
        ({"prefill": ("http://h:99999",), "decode": ("http://h:2",)}, "99999"),
        ({"prefill": ("http://h:1",), "decode": ("http://h:1/",)}, "http://h:1"),
        ({"prefill": ("http://h:1", "http://h:1/v1"), "decode": ("http://h:2",)}, "twice"),
        ({"prefill": ("http://h:1",), "decode": ("http://h:2",), "port": 70000}, "70000"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        ProxyConfig(**settings)


def test_urls_may_end_in_v1_or_a_slash() -> None:
    config = ProxyConfig(prefill=("http://h:1/v1/",), decode=("https://d/",))
    assert (config.prefill, config.decode) == (("http://h:1",), ("https://d",))
