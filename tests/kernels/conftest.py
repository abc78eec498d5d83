"""Kernels run in Triton's interpreter here: it must be on before any kernel is imported."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
