"""The servers behind the proxy and what is known about each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pdkv_connector.policy.round_robin import RoundRobin
from pdkv_connector.proxy.failures import none_healthy


@dataclass
class Server:
    """One engine; `fault` names it and says why it gets no requests, empty when it does.

    `probed` holds a prefill engine's own `kv_transfer_params` (who and where it is), None until it has been asked.
    """

    role: str
    url: str
    fault: str = field(init=False)
    missed_checks: int = 0
    probed: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.fault = f"{self.role} server {self.url} has not been checked yet"

    @property
    def healthy(self) -> bool:
        return not self.fault

    def lose(self, fault: str) -> None:
        """Take the server out; what it said about itself may be another process's by the time it is back."""
        self.fault = fault
        self.probed = None

    def restore(self) -> None:
        """The server answered its check."""
        self.fault = ""
        self.missed_checks = 0


class Fleet:
    """Prefill and decode servers; picks round robin among the healthy ones."""

    def __init__(self, prefill: Iterable[str], decode: Iterable[str]) -> None:
        self.servers = [Server("prefill", url) for url in prefill] + [Server("decode", url) for url in decode]
        self._turns = {role: RoundRobin([s.url for s in self.of(role)]) for role in ("prefill", "decode")}

    def of(self, role: str) -> list[Server]:
        """All servers of `role`, in the order they were given."""
        return [server for server in self.servers if server.role == role]

    def pick(self, role: str) -> Server:
        """The next healthy server of `role`. Raises RequestFailed (503) when there is none."""
        healthy = {server.url: server for server in self.of(role) if server.healthy}
        url = self._turns[role].pick(healthy)
        if url is None:
            raise none_healthy(role, [server.fault for server in self.of(role)])
        return healthy[url]

    def ready(self) -> bool:
        """True when a request could be served: one healthy server of each role."""
        return all(any(server.healthy for server in self.of(role)) for role in ("prefill", "decode"))
