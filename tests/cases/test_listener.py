"""C20, C28: the control port, when it cannot be opened and when strangers find it."""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import pytest

from pdkv_connector.errors import ProtocolError, TransportError
from pdkv_connector.runtime import loop
from pdkv_connector.transport import control
from pdkv_connector.transport.control import ControlPlane
from tests.cases.planted import caught, plant
from tests.unit.runtime import test_lifecycle as lifecycle
from tests.unit.runtime.prompts import Prompt
from tests.unit.runtime.roles import Decode, Prefill
from tests.unit.transport import test_control_hostile as hostile

UNKNOWN_RANK = ["get_meta_msg", 99]
"""What the listener of another connector takes for a question."""


def test_case_c28_strangers_cost_an_engine_nothing(prefill: Prefill, decode: Decode) -> None:
    """vLLM's NIXL listener: one packet of garbage, of an unknown rank or of an old shape ended the thread, and no
    engine could be introduced from then on. Here on both ports, before a transfer and in the middle of one.
    """
    prompt = Prompt(200)
    for role in (prefill, decode):
        pester(role.rank.runtime.endpoint)
    decode.want(prompt, prefill)
    for role in (prefill, decode):
        pester(role.rank.runtime.endpoint)
    prefill.run(prompt)
    decode.rank.wait_delivered(prompt)
    assert decode.faults() == []
    prefill.rank.wait_released(prompt)
    assert prefill.rank.runtime._control.rejected_frames > 0, "nothing reached the port: this shows nothing"


def pester(endpoint: str) -> None:
    """All that strangers say, from as many connections."""
    for number, parts in enumerate(hostile.HOSTILE.values()):
        hostile.send_frames(endpoint, f"evil{number}#1".encode(), [parts])
    hostile.send_frames(endpoint, b"old#1", [[msgspec.msgpack.encode(UNKNOWN_RANK)]])
    host, _, port = endpoint.rpartition(":")
    for data in hostile.RAW.values():
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(data)


# -- the wrong outcomes -----------------------------------------------------------------------------------------------


def _listen_elsewhere(original: Any) -> Any:
    """The port that was asked for is not there, and nobody is told."""

    def open_router(context: Any, _host: str, _port: int, *rest: Any) -> Any:
        try:
            return original(context, _host, _port, *rest)
        except TransportError:
            return original(context, "127.0.0.1", 0, *rest)

    return open_router


def _raise_what_is_wrong(_original: Any) -> Any:
    return lambda _self, source, parts: control._parse(source, parts)


def _die_of_it(_original: Any) -> Any:
    def unguarded() -> AbstractContextManager[None]:
        return nullcontext()

    return unguarded


def test_case_c20_control_a_port_that_is_not_there(decode: Decode) -> None:
    with caught("DID NOT RAISE", plant(control, "open_router", _listen_elsewhere)):
        lifecycle.test_case_c20_a_taken_port_or_a_strange_host_is_named(decode)
    with caught("DID NOT RAISE", plant(control, "open_router", _listen_elsewhere)):
        hostile.test_case_c20_an_address_of_another_machine_is_named("192.0.2.1")


def test_case_c28_control_a_listener_that_lets_it_through(caplog: pytest.LogCaptureFixture) -> None:
    server = ControlPlane("server", "127.0.0.1", 0)
    try:
        with caught("malformed frame", plant(ControlPlane, "_admit", _raise_what_is_wrong), error=ProtocolError):
            hostile.test_case_c28_hostile_frames_are_counted_and_dropped(server, hostile.HOSTILE["garbage"], caplog)
    finally:
        server.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_case_c28_control_a_thread_that_dies_of_it(prefill: Prefill, decode: Decode) -> None:
    faults = plant(ControlPlane, "_admit", _raise_what_is_wrong), plant(loop, "_costing_itself_only", _die_of_it)
    with caught("no delivery", *faults):
        test_case_c28_strangers_cost_an_engine_nothing(prefill, decode)
