"""How a connector is configured and what its requests carry, for ours and for vLLM's NixlConnector."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from typing import Any, ClassVar

Params = dict[str, Any]

LOST_AFTER_S = 8.0
"""Silence after which the connectors under test give a peer, a lease or an unknown transfer up."""

IMPATIENT: Params = {
    "lease_s": LOST_AFTER_S,
    "heartbeat_s": 0.5,
    "peer_timeout_s": LOST_AFTER_S,
    "producer_timeout_s": LOST_AFTER_S,
    "stall_timeout_s": 4 * LOST_AFTER_S,
}
"""Settings under which failures are noticed within seconds, so that tests need not wait for minutes."""


def free_port() -> int:
    """A TCP port the OS says is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Dialect(ABC):
    """One connector: its `kv_transfer_config`, its environment, its `kv_transfer_params`."""

    name: ClassVar[str]
    concurrent: ClassVar[bool]

    @abstractmethod
    def config(self, role: str, host: str, policy: str, extra: Params) -> Params:
        """The engine's `kv_transfer_config`; `extra` are connector settings on top."""

    @abstractmethod
    def env(self, host: str) -> dict[str, str]:
        """Variables the connector needs in the engine's environment."""

    @abstractmethod
    def for_producer(self, transfer_id: str, **pdkv: Any) -> Params:
        """What the prefill request carries."""

    def probe(self) -> Params | None:
        """A request that asks P for what D must know before P has computed anything; None: there is no such."""
        return None


class Pdkv(Dialect):
    """This project's connector, found through its entry point."""

    name = "pdkv"
    concurrent = True

    def config(self, role: str, host: str, policy: str, extra: Params) -> Params:
        return {
            "kv_connector": "PDKVConnector",
            "kv_role": role,
            "kv_load_failure_policy": policy,
            "kv_connector_extra_config": {"control_host": host, **extra},
        }

    def env(self, host: str) -> dict[str, str]:
        return {"VLLM_HOST_IP": host}

    def for_producer(self, transfer_id: str, **pdkv: Any) -> Params:
        return {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "pdkv": {"transfer_id": transfer_id, **pdkv},
        }

    def probe(self) -> Params | None:
        return {"do_remote_decode": False, "do_remote_prefill": False, "pdkv": {"probe": True}}


class Nixl(Dialect):
    """vLLM's own NixlConnector: D reads P's blocks after P has answered."""

    name = "nixl"
    concurrent = False

    def config(self, role: str, host: str, policy: str, extra: Params) -> Params:
        return {"kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": policy}

    def env(self, host: str) -> dict[str, str]:
        side_channel = {"VLLM_NIXL_SIDE_CHANNEL_HOST": host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
        return {"VLLM_HOST_IP": host, **side_channel}

    def for_producer(self, transfer_id: str, **pdkv: Any) -> Params:
        return {"do_remote_decode": True, "do_remote_prefill": False}


DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (Pdkv(), Nixl())}


def for_consumer(producer_facts: Params, transfer_id: str, **pdkv: Any) -> Params:
    """What the decode request carries when it is sent before P has answered; `producer_facts` came from a probe."""
    return {
        **producer_facts,
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "pdkv": {**producer_facts["pdkv"], "transfer_id": transfer_id, **pdkv},
    }
