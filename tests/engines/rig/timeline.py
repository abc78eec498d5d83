"""What the connectors recorded: one JSON line an event, with wall-clock times comparable on one machine.

Producer events: queued, chunk, posted, written, finished, delivered, closed. Consumer events: registered, landed,
scattered, complete, failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.rig.process import wait_until

Event = dict[str, Any]


@dataclass(frozen=True)
class Timeline:
    """Events of one engine's connector, read afresh at each call."""

    path: Path

    def events(self, transfer_id: str, *names: str) -> list[Event]:
        """Events of one transfer in the order written; all kinds when no `names` are given."""
        if not self.path.exists():
            return []
        complete_lines = self.path.read_text().split("\n")[:-1]
        events = [event for line in complete_lines if (event := json.loads(line))["transfer_id"] == transfer_id]
        return [event for event in events if not names or event["event"] in names]

    def wait_for(
        self,
        transfer_id: str,
        name: str,
        timeout_s: float = 60.0,
        accept: Callable[[Event], bool] = lambda _: True,
    ) -> Event:
        """The first event of this name that `accept` takes, waited for. Raises TimeoutError with what there was."""
        found: list[Event] = []

        def look() -> bool:
            found.extend(event for event in self.events(transfer_id, name) if accept(event))
            return bool(found)

        wait_until(look, f"event {name!r} of {transfer_id} in {self.path.name}", timeout_s)
        return found[0]

    def reasons(self, transfer_id: str) -> list[str]:
        """Why the transfer failed, as recorded."""
        return [str(event["reason"]) for event in self.events(transfer_id, "failed")]
