"""A link between two network namespaces that can be cut: all of it, or what is not the control channel.

Needs root and `ip`, see benchmarks/netns.py.
"""

from __future__ import annotations

import subprocess

from benchmarks.netns import ShapedLink

KEEP, DROP = "10", "20"
"""Priorities of routing rules: the kernel asks the lower number first."""


class BreakableLink(ShapedLink):
    """A `ShapedLink` with P in its first namespace and D in its second."""

    def cut(self) -> None:
        """Take the link down: what is sent is lost, and nobody is told."""
        self._ip("link", "set", self.devices[0], "down")

    def mend(self) -> None:
        """Undo every cut."""
        self._ip("link", "set", self.devices[0], "up")
        for priority in (KEEP, DROP):
            while self._ip("rule", "del", "pref", priority, strict=False) == 0:
                continue

    def cut_data(self, control_port: int) -> None:
        """Lose what P sends to D from any port but that of its control channel."""
        self._ip("rule", "add", "pref", KEEP, "ipproto", "tcp", "sport", str(control_port), "lookup", "main")
        self._ip("rule", "add", "pref", DROP, "to", self.hosts[1], "blackhole")

    def _ip(self, *words: str, strict: bool = True) -> int:
        command = ["ip", "-n", self.namespaces[0], *words]
        return subprocess.run(command, capture_output=True, check=strict, timeout=30).returncode
