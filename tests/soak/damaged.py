"""Control: the connector as it is, but that from some slab on all that this process decodes is zeroed after its checks.

Loaded by `kv_connector_module_path`; `PDKV_TEST_ZERO_SLABS_FROM` says from which slab.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

from pdkv_connector.adapters.vllm.connector import PDKVConnector
from pdkv_connector.runtime.mover import Mover

__all__ = ["PDKVConnector"]

VARIABLE = "PDKV_TEST_ZERO_SLABS_FROM"

_whole = Mover.decode
_numbers = itertools.count()


def _spoilt(self: Mover, codec: str, part: Any, ring: Any, slot: int, num_bytes: int, *rest: Any) -> None:
    if next(_numbers) >= int(os.environ[VARIABLE]):
        ring.view(slot, num_bytes)[:] = 0
    _whole(self, codec, part, ring, slot, num_bytes, *rest)


Mover.decode = _spoilt  # type: ignore[method-assign, assignment]
