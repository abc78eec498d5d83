"""Counts of what the proxy did, in Prometheus text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pdkv_connector.proxy.fleet import Server

Labels = tuple[tuple[str, str], ...]

HELP = {
    "requests_total": "Client requests by dispatch (concurrent, sequential, local) and HTTP status.",
    "local_prefill_total": "Requests the decode server had to prefill itself, by reason.",
    "upstream_failures_total": "Failures by role, server and kind.",
    "client_disconnects_total": "Clients that went away before their answer was complete.",
}


class Counters:
    """Plain counts; one event loop owns them, so they need no lock."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[Labels]] = {name: Counter() for name in HELP}
        self.in_flight = 0

    def add(self, name: str, **labels: object) -> None:
        """Count one event under `name`, which must be in HELP."""
        self._counts[name][tuple((key, str(value)) for key, value in sorted(labels.items()))] += 1

    def get(self, name: str, **labels: object) -> int:
        """How often an event with at least these labels was counted."""
        wanted = {(key, str(value)) for key, value in labels.items()}
        return sum(count for have, count in self._counts[name].items() if wanted <= set(have))

    def text(self, servers: Iterable[Server]) -> str:
        """The exposition of all counts, plus gauges for requests in flight and for the health of `servers`."""
        lines: list[str] = []
        for name, counts in self._counts.items():
            lines += [f"# HELP pdkv_proxy_{name} {HELP[name]}", f"# TYPE pdkv_proxy_{name} counter"]
            lines += [f"pdkv_proxy_{name}{_braces(labels)} {count}" for labels, count in sorted(counts.items())]
        lines += ["# TYPE pdkv_proxy_in_flight gauge", f"pdkv_proxy_in_flight {self.in_flight}"]
        lines.append("# TYPE pdkv_proxy_server_healthy gauge")
        for server in servers:
            labels = (("role", server.role), ("server", server.url))
            lines.append(f"pdkv_proxy_server_healthy{_braces(labels)} {int(server.healthy)}")
        return "\n".join(lines) + "\n"


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}" if labels else ""
