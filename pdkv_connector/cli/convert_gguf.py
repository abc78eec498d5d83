"""Child process of `models.py`: `convert_gguf GGUF OUT_DIR [BOS_TOKEN]` writes a bfloat16 Hugging Face folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pdkv_connector.errors import ConfigError


def convert(gguf: Path, out_dir: Path, bos_token: str | None = None) -> None:
    """Dequantize `gguf` to bfloat16 and save model and tokenizer into `out_dir`.

    `bos_token` is put before every prompt: the tokenizer that comes out of some GGUF files drops it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16, quantization_config=plain)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out_dir)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    if bos_token:
        _prepend_bos(tokenizer, bos_token)
    tokenizer.save_pretrained(out_dir)


def _prepend_bos(tokenizer: Any, bos_token: str) -> None:
    from tokenizers.processors import TemplateProcessing

    bos_id = tokenizer.convert_tokens_to_ids(bos_token)
    if bos_id is None:
        raise ConfigError(f"tokenizer has no token {bos_token!r}: fix the model's entry in models.SOURCES")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos_token} $A", pair=f"{bos_token} $A {bos_token} $B", special_tokens=[(bos_token, bos_id)]
    )


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
