"""Two network namespaces joined by a shaped link: a slow network between two engines of one machine.

Source of the shaping: tc-tbf(8). Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from types import TracebackType

BURST = "1mb"
QUEUE_LATENCY = "200ms"
UNSHAPED = "unshaped"


class CannotShape(Exception):
    """This machine or user cannot make network namespaces; the message says what to do."""


def require_tools() -> None:
    """Raises CannotShape unless this process is root and has `ip` and `tc`."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise CannotShape(f"missing {' and '.join(missing)}: apt-get install iproute2")
    if os.geteuid() != 0:
        raise CannotShape(f"effective user id is {os.geteuid()}, network namespaces need root: run with sudo")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise CannotShape(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


class ShapedLink:
    """A context: namespaces for prefill and decode, one address each; both are removed on exit."""

    def __init__(self) -> None:
        tag = os.getpid()
        self.namespaces = (f"pdkv-{tag}-p", f"pdkv-{tag}-d")
        self.hosts = ("10.213.0.1", "10.213.0.2")
        self.devices = (f"pdkv{tag % 100_000}p", f"pdkv{tag % 100_000}d")

    def __enter__(self) -> ShapedLink:
        require_tools()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def _build(self) -> None:
        for namespace in self.namespaces:
            _run("ip", "netns", "add", namespace)
        (ns_p, ns_d), (dev_p, dev_d) = self.namespaces, self.devices
        # Created inside a namespace: a name clash with the host's own devices cannot happen.
        _run("ip", "-n", ns_p, "link", "add", dev_p, "type", "veth", "peer", "name", dev_d, "netns", ns_d)
        for namespace, device, host in zip(self.namespaces, self.devices, self.hosts, strict=True):
            _run("ip", "-n", namespace, "addr", "add", f"{host}/24", "dev", device)
            _run("ip", "-n", namespace, "link", "set", device, "up")
            _run("ip", "-n", namespace, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for namespace in self.namespaces:
            # The veth pair goes with its namespace; one that was never made is no error.
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False, timeout=30)

    def set_rate(self, rate: str) -> None:
        """Shape both directions to `rate` in tc's units (`400mbit`), or not at all (`unshaped`)."""
        for namespace, device in zip(self.namespaces, self.devices, strict=True):
            if rate == UNSHAPED:
                subprocess.run(
                    ["tc", "-n", namespace, "qdisc", "delete", "dev", device, "root"],
                    capture_output=True,
                    check=False,
                    timeout=30,
                )
            else:
                shape = ("tbf", "rate", rate, "burst", BURST, "latency", QUEUE_LATENCY)
                _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *shape)

    def sent_bytes(self) -> int:
        """Bytes the prefill side has put on the link, headers included."""
        links = json.loads(_run("ip", "-n", self.namespaces[0], "-s", "-j", "link", "show", "dev", self.devices[0]))
        return int(links[0]["stats64"]["tx"]["bytes"])
