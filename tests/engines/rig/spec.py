"""What engine to start, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KV_CACHE_GIB = 1


COMMON = {
    # Two engines on two cores need single-threaded, sleeping OpenMP.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Without it engines on one machine talk through shared memory, past any link between them.
    "UCX_TLS": "tcp",
}
"""Environment of every engine process; some of it is read when the engine is imported."""


@dataclass(frozen=True)
class EngineSpec:
    """One engine. `core` is the only CPU core its threads may use; `netns` a network namespace, empty for none.

    `args` are arguments of `vllm.LLM` on top of what all engines have.
    """

    name: str
    model: Path
    dtype: str = "float32"
    kv_transfer_config: dict[str, Any] | None = None
    max_num_batched_tokens: int = 256
    max_model_len: int = 4096
    core: int = 0
    netns: str = ""
    env: dict[str, str] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)

    def engine_args(self) -> dict[str, Any]:
        """Arguments of `vllm.LLM`."""
        args: dict[str, Any] = {
            "model": str(self.model),
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": 16,
            "enforce_eager": True,
            "seed": 0,
            "disable_log_stats": True,
        }
        if self.kv_transfer_config is not None:
            # A hybrid model keeps its KV groups only when told to: with a connector vLLM turns them off by default.
            args |= {"kv_transfer_config": self.kv_transfer_config, "disable_hybrid_kv_cache_manager": False}
        return {**args, **self.args}

    def environment(self) -> dict[str, str]:
        """Variables of this engine, on top of those that are common to all."""
        return {"VLLM_CPU_OMP_THREADS_BIND": str(self.core), **self.env}
