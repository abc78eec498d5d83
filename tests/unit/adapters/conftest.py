"""Most of these tests are about vLLM's own objects: without vLLM there is nothing to test."""

from __future__ import annotations

import importlib.util

FREE_OF_VLLM = {"test_params.py"}

if importlib.util.find_spec("vllm") is None:
    from pathlib import Path

    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in FREE_OF_VLLM]
