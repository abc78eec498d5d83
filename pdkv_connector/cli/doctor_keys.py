"""Check of the control channel's keys."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

from pdkv_connector.cli.checks import Finding, fault, note, ok
from pdkv_connector.config import Config
from pdkv_connector.errors import ConfigError
from pdkv_connector.session.messages import Closed
from pdkv_connector.transport.control import ControlPlane
from pdkv_connector.transport.control_keys import Keys, load_keys

TURNS, TURN_S = 50, 0.1


def keys() -> Iterator[Finding]:
    """Whether there are keys, whether an engine started here can use them, and whether it would need any."""
    try:
        config = Config.from_sources({}, os.environ)
    except ConfigError:
        config = Config()
    try:
        found = load_keys(config.keys_dir)
    except ConfigError as error:
        yield fault("keys", str(error), "or unset PDKV_KEYS_DIR to go without keys")
        return
    if found:
        yield _handshake(found)
    elif config.control_is_local:
        yield ok("keys", "none, and only this machine reaches the control channel")
    else:
        yield note("keys", f"none, but others reach {config.control_host}: `pdkv keys create` and PDKV_KEYS_DIR")


def _handshake(found: Keys) -> Finding:
    """Let one message pass between two control channels here."""
    shown = ", ".join(pair.fingerprint for pair in found)
    server, client = (ControlPlane(uuid.uuid4().hex, "127.0.0.1", 0, found) for _ in range(2))
    try:
        client.send(client.dial(server.endpoint), Closed("doctor", 0))
        for _ in range(TURNS):
            server.wait(TURN_S)
            if server.receive():
                return ok("keys", f"{shown} (the same on every machine?)")
    finally:
        client.close()
        server.close()
    return fault("keys", f"{shown}: no message passed between two channels that have them", "report it")
