"""KV of the small real models, computed on the spot from texts that every Python machine has."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdkv_connector.cli.models import ensure_model


@dataclass(frozen=True)
class PlaneKV:
    """K or V of one layer: `bits` is uint16 `[heads, tokens, dims]`, bfloat16 as it lies in a cache (K after RoPE)."""

    model: str
    text: str
    layer: int
    plane: str
    bits: NDArray[np.uint16]


def texts() -> dict[str, str]:
    """Three kinds of text from the standard library: prose about Python, source code, and a dialogue."""
    import argparse
    import pydoc_data.topics

    with contextlib.redirect_stdout(None):
        import this

    docs = "\n".join(pydoc_data.topics.topics[name] for name in ("types", "assignment", "operator-summary", "exceptions"))
    zen = "".join(this.d.get(letter, letter) for letter in this.s)
    lines = [line for line in zen.splitlines() if line]
    turns = "\n".join(f"User: What does '{line}' mean?\nAssistant: It is line {i} of a poem." for i, line in enumerate(lines))
    return {"docs": docs, "code": inspect.getsource(argparse), "chat": turns * 4}


def dump(model: str, num_tokens: int, names: tuple[str, ...] = ("docs", "code", "chat")) -> Iterator[PlaneKV]:
    """Prefill each text with `model` (a name of `pdkv_connector.cli.models`) and yield every plane of its KV."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

    path = ensure_model(model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    network: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    for name in names:
        ids = tokenizer(texts()[name], return_tensors="pt").input_ids[:, :num_tokens]
        with torch.no_grad():
            cache = network(input_ids=ids, past_key_values=DynamicCache(), logits_to_keep=1).past_key_values
        for index, layer in enumerate(cache.layers):
            for plane, tensor in (("K", layer.keys), ("V", layer.values)):
                yield PlaneKV(model, name, index, plane, tensor[0].contiguous().view(torch.uint16).numpy())
