"""Servers as child processes: readiness, early ends, and that nothing stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pdkv_connector.cli import servers
from pdkv_connector.cli.servers import EngineSpec, Server
from pdkv_connector.errors import EngineError

HEALTHY = """
import http.server, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def _start(code: str, folder: Path) -> Server:
    port = servers.free_port()
    return servers.start("stub", [sys.executable, "-c", code, str(port)], port, folder / "stub.log", os.environ)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _alive(pid)


def test_a_server_is_ready_when_it_answers_and_stops_with_its_children(tmp_path: Path) -> None:
    with servers.stopping([]) as running:
        running.append(_start(HEALTHY, tmp_path))
        running[0].wait_ready(60)
        child = int(running[0].log_path.read_text().split()[1])
        assert _alive(child)
        assert _alive(running[0].pid)
    assert _gone(running[0].pid)
    assert _gone(child)
    running[0].stop()


def test_a_server_that_ignores_termination_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "STOP_GRACE_S", 0.5)
    server = _start("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HEALTHY, tmp_path)
    server.wait_ready(60)
    server.stop()
    assert _gone(server.pid)


def test_a_server_that_ends_early_quotes_its_error_and_its_log(tmp_path: Path) -> None:
    server = _start("raise ValueError('no such model')", tmp_path)
    with pytest.raises(EngineError, match=r"stub ended with code 1 .*ValueError: no such model \(log: .*stub\.log"):
        server.wait_ready(60)


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    server = _start("import time; time.sleep(600)", tmp_path)
    with servers.stopping([server]), pytest.raises(EngineError, match="was not ready after 1 s"):
        server.wait_ready(1)
    assert _gone(server.pid)


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from pdkv_connector.cli import servers\n"
        f"s = servers.start('s', [sys.executable, '-c', 'import time; time.sleep(600)'], 1, "
        f"Path({str(tmp_path)!r}) / 's.log', os.environ)\n"
        "print(s.pid, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(1)  # The tether ties itself after it has been started.
        assert _alive(pid)
        parent.send_signal(signal.SIGKILL)
    assert _gone(pid)


def test_an_engine_gets_its_settings_and_keeps_the_callers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SETTING", "kept")
    transfer = {"kv_connector": "PDKVConnector", "kv_role": "kv_producer"}
    spec = EngineSpec("p", Path("/m"), core=1, kv_transfer=transfer, arguments=("--x", "1"), environment={"A": "b"})
    command, environment = spec.command(7001), spec.full_environment()
    assert (
        command[command.index("--kv-transfer-config") + 1]
        == '{"kv_connector": "PDKVConnector", "kv_role": "kv_producer"}'
    )
    assert command[command.index("--port") + 1] == "7001"
    assert command[-2:] == ["--x", "1"]
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert (environment["SOME_SETTING"], environment["A"]) == ("kept", "b")
