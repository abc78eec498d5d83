"""What the connector reports through vLLM's own statistics, from worker and scheduler to the front end.

Contract: vLLM 0.32, `KVConnectorStats`. Ranks report what was added since last time; reports of ranks and steps add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

MB = 1e6
PLAIN = {
    "resent_slabs": "slabs sent again", "damaged_slabs": "slabs damaged", "strangers_refused": "strangers refused",
    "leases": "leases", "reserved_tokens": "reserved tokens",
}  # fmt: skip
"""Numbers that the log line shows as they are."""


@dataclass
class PDKVStats(KVConnectorStats):
    """`data` is plain, to cross processes; series names are those of `telemetry.metrics`.

    added: counter series -> increase. gauges: gauge series -> value, if it changed. seconds: histogram -> durations.
    peers: rank -> name -> how KV goes there now; a rank that is there lists all of its peers.
    """

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data: dict[str, Any] = {"added": {}, "gauges": {}, "seconds": {}, "peers": {}}

    def is_empty(self) -> bool:
        return not any(self.data.values())

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        added, seconds = self.data["added"], self.data["seconds"]
        for series, increase in other.data["added"].items():
            added[series] = added.get(series, 0) + increase
        for metric, durations in other.data["seconds"].items():
            seconds[metric] = [*seconds.get(metric, ()), *durations]
        self.data["gauges"].update(other.data["gauges"])
        self.data["peers"].update(other.data["peers"])
        return self

    def reduce(self) -> dict[str, Any]:
        """The interval in one line; times and rates are left to the metrics."""
        added, gauges = self.data["added"], self.data["gauges"]
        line: dict[str, Any] = {}
        for way in ("sent", "received"):
            if added.get(f"{way}_slabs"):
                wire_bytes = added[f"{way}_wire_bytes"]
                line[f"KV {way} MB"] = round(added[f"{way}_kv_bytes"] / MB, 1)
                line[f"{way} ratio"] = round(added[f"{way}_kv_bytes"] / wire_bytes, 3) if wire_bytes else 1.0
        numbers = added | gauges
        line |= {name: numbers[series] for series, name in PLAIN.items() if series in numbers}
        line |= {series.replace(",", " "): value for series, value in added.items() if "," in series}
        if backlogs := [value for series, value in gauges.items() if series.startswith("backlog_bytes")]:
            line["backlog MB"] = round(sum(backlogs) / MB, 1)
        for peers in self.data["peers"].values():
            line |= {f"codec for {name}": f"{peer['codec']} ({peer['reason']})" for name, peer in peers.items()}
        return line
