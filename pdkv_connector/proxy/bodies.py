"""What each engine is sent for one client request. Pure: dicts in, dicts out, inputs never changed."""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]

DROPPED_FOR_PREFILL = frozenset(
    # Output only: the prefill engine's one token is thrown away. What may change the prompt stays, for both engines
    # must see the same tokens: tools, tool_choice, response_format, truncate_prompt_tokens, add_special_tokens, ...
    {
        *("stream_options", "n", "best_of", "use_beam_search", "length_penalty", "suffix"),
        *("min_tokens", "ignore_eos", "stop", "stop_token_ids", "include_stop_str_in_output"),
        *("logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids"),
        *("logit_bias", "bad_words", "allowed_token_ids", "repetition_detection", "structured_outputs"),
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        *("return_token_ids", "return_tokens_as_token_ids", "return_prompt_text"),
    }
)

STOCK_PREFILL_PARAMS: Body = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}

PROBE: Body = {
    "prompt": ".",
    "max_tokens": 1,
    "kv_transfer_params": {"do_remote_decode": False, "do_remote_prefill": False, "pdkv": {"probe": True}},
}


def prefill_body(body: Body, params: Body, chat: bool) -> Body:
    """The request for the prefill engine: the same prompt, one token, nothing streamed."""
    kept = {key: value for key, value in body.items() if key not in DROPPED_FOR_PREFILL}
    if not chat:
        kept.pop("echo", None)  # In a chat, `echo` is about the prompt.
    kept |= {"max_tokens": 1, "stream": False, "kv_transfer_params": params}
    return kept | ({"max_completion_tokens": 1} if chat else {})


def decode_body(body: Body, params: Body | None) -> Body:
    """The client's own request; its `kv_transfer_params` never pass, for they name hosts to connect to."""
    kept = {key: value for key, value in body.items() if key != "kv_transfer_params"}
    return kept if params is None else kept | {"kv_transfer_params": params}


def local_reason(body: Body, chat: bool) -> str | None:
    """Why the decode engine must prefill this request itself, or None when its KV may come from elsewhere.

    Values over the prompt's own tokens exist only where the prompt is computed, and one transfer carries the KV of one
    sequence: an engine splits the requests named here into several.
    """
    if body.get("prompt_logprobs") is not None:
        return "prompt_logprobs"
    if _more_than_one(body, "n") or _more_than_one(body, "best_of") or body.get("use_beam_search"):
        return "several_sequences"
    if chat:
        return None
    if body.get("echo") and (body.get("logprobs") is not None or body.get("max_tokens") == 0):
        return "echo"
    return "several_prompts" if _several_prompts(body.get("prompt")) else None


def concurrent_prefill_params(transfer_id: str) -> Body:
    """`kv_transfer_params` of the prefill leg when both engines are asked at once."""
    return {"do_remote_decode": True, "do_remote_prefill": False, "pdkv": {"transfer_id": transfer_id}}


def concurrent_decode_params(transfer_id: str, probed: Body) -> Body:
    """`kv_transfer_params` of the decode leg: the transfer, and where the prefill engine said it can be found."""
    stock = _only(probed, "remote_engine_id", "remote_host", "remote_port", "tp_size")
    ours = _only(probed["pdkv"], "endpoints", "tp_size", "pp_size")
    return {"do_remote_prefill": True, "do_remote_decode": False, **stock, "pdkv": {"transfer_id": transfer_id, **ours}}


def _only(params: Body, *keys: str) -> Body:
    return {key: params[key] for key in keys if key in params}


def _more_than_one(body: Body, key: str) -> bool:
    value = body.get(key)
    return isinstance(value, int) and value > 1


def _several_prompts(prompt: object) -> bool:
    if not isinstance(prompt, list) or len(prompt) < 2:
        return False
    return not isinstance(prompt[0], int)
