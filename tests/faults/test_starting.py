"""A server that cannot have the control port it was told to take."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from pdkv_connector.errors import EngineError
from tests.faults.rig.ground import SLACK_S
from tests.faults.rig.record import RECORD
from tests.faults.rig.served import Served, server_of
from tests.faults.rig.vllm_server import VllmServer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


def seconds_to_the_end(server: VllmServer, cause: str) -> float:
    """Seconds a server takes to end by itself once its log names `cause`."""
    while cause not in server.log():
        assert server.process.is_running, f"ended without naming {cause!r}: {server.process.log_tail()}"
        time.sleep(0.1)
    named = time.monotonic()
    with pytest.raises(EngineError, match="ended with code"):
        server.wait_ready()
    return time.monotonic() - named


def test_case_c20_a_server_on_a_taken_control_port_exits_and_names_it(
    tmp_path: Path, deployment: Served, no_engines: None
) -> None:
    deployment.stop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = server_of("producer", tmp_path, {"control_port": port}, 0)
        try:
            server.start()
            ended_s = seconds_to_the_end(server, f"127.0.0.1:{port}")
        finally:
            server.stop()
    lines = [line for line in server.log().splitlines() if f"127.0.0.1:{port}" in line]
    assert any("choose a free port" in line for line in lines), lines
    assert ended_s < SLACK_S
    RECORD.note("control port taken", "start", "server exits, names port and fix", ended_s)
