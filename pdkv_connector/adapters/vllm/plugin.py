"""Entry point `vllm.general_plugins`: makes `PDKVConnector` known to vLLM's connector factory."""

from __future__ import annotations

import logging

CONNECTOR = "PDKVConnector"
MODULE = "pdkv_connector.adapters.vllm.connector"

logger = logging.getLogger(__name__)


def register() -> None:
    """Called by vLLM in every process it starts, possibly more than once. Never raises: a plugin must not stop vLLM."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        if CONNECTOR not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(CONNECTOR, MODULE, CONNECTOR)
        _join_log()
    except Exception:
        logger.exception("%s could not be registered; `pdkv doctor` tells more", CONNECTOR)


def _join_log() -> None:
    """Our log goes where vLLM's goes and at its level, however and whenever vLLM configures it."""
    logging.getLogger("pdkv_connector").parent = logging.getLogger("vllm")
