"""Control: the connector as it is, but that one slab this process decodes is spoilt after its checks.

Loaded by `kv_connector_module_path`; `PDKV_TEST_FLIP_SLAB` says which slab.
"""

from __future__ import annotations

import os

from pdkv_connector.adapters.vllm.connector import PDKVConnector
from tests.engines.rig import sabotage

sabotage.apply(os.environ)

__all__ = ["PDKVConnector"]
