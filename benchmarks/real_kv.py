"""KV of the small real models, computed on the spot from texts that every Python machine has."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdkv_connector.cli.models import default_cache_dir, ensure_model

BITS: dict[str, Any] = {"bfloat16": np.uint16, "float32": np.uint32}
"""Dtypes a model can be run in, and the integers that hold their bits."""


@dataclass(frozen=True)
class PlaneKV:
    """K or V of one layer: `bits` is uint16 `[heads, tokens, dims]`, bfloat16 as it lies in a cache (K after RoPE).

    Of a float32 forward pass `bits` is uint32.
    """

    model: str
    text: str
    layer: int
    plane: str
    bits: NDArray[Any]


def texts() -> dict[str, str]:
    """Three kinds of text from the standard library: prose about Python, source code, and a dialogue."""
    import argparse
    import pydoc_data.topics

    with contextlib.redirect_stdout(None):
        import this

    topics = ("types", "assignment", "operator-summary", "exceptions")
    docs = "\n".join(pydoc_data.topics.topics[name] for name in topics)
    zen = "".join(this.d.get(letter, letter) for letter in this.s)
    lines = [line for line in zen.splitlines() if line]
    turns = "\n".join(
        f"User: What does '{line}' mean?\nAssistant: It is line {i} of a poem." for i, line in enumerate(lines)
    )
    return {"docs": docs, "code": inspect.getsource(argparse), "chat": turns * 4}


def dump(
    model: str, num_tokens: int, names: tuple[str, ...] = ("docs", "code", "chat"), dtype: str = "bfloat16"
) -> Iterator[PlaneKV]:
    """Prefill each text with `model` (a name of `pdkv_connector.cli.models`) in `dtype`, and yield every plane."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

    path = ensure_model(model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    network: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    as_bits = {"bfloat16": torch.uint16, "float32": torch.uint32}[dtype]
    for name in names:
        ids = tokenizer(texts()[name], return_tensors="pt").input_ids[:, :num_tokens]
        with torch.no_grad():
            cache = network(input_ids=ids, past_key_values=DynamicCache(), logits_to_keep=1).past_key_values
        for index, layer in enumerate(cache.layers):
            for plane, tensor in (("K", layer.keys), ("V", layer.values)):
                yield PlaneKV(model, name, index, plane, tensor[0].contiguous().view(as_bits).numpy())


def load(model: str, num_tokens: int, dtype: str = "bfloat16") -> NDArray[Any]:
    """Bits of every text's KV as `[text][layer][plane][head][token][dim]`, from the cache once they were computed.

    Raises ValueError where a text is shorter than `num_tokens`.
    """
    key = hashlib.sha256(repr(sorted(texts().items())).encode()).hexdigest()[:12]
    path = default_cache_dir() / "kv" / f"{ensure_model(model).name}-{dtype}-{num_tokens}-{key}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        with scratch.open("wb") as file:
            np.save(file, _stacked(model, num_tokens, dtype))
        scratch.replace(path)
    bits: NDArray[Any] = np.load(path)
    return bits


def _stacked(model: str, num_tokens: int, dtype: str) -> NDArray[Any]:
    planes = list(dump(model, num_tokens, dtype=dtype))
    num_layers = 1 + max(plane.layer for plane in planes)
    short = {plane.text for plane in planes if plane.bits.shape[1] != num_tokens}
    if short:
        raise ValueError(f"{model}: these texts have fewer than {num_tokens} tokens: {', '.join(sorted(short))}")
    bits = np.stack([plane.bits for plane in planes])
    return bits.reshape(-1, num_layers, 2, *bits.shape[1:])
