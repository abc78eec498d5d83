"""Connections under the names that sessions use."""

from __future__ import annotations

import time

from pdkv_connector.runtime.links import INBOUND, Links
from pdkv_connector.session.messages import Heartbeat
from pdkv_connector.transport.control import ControlPlane, Received


def heard(control: ControlPlane) -> list[Received]:
    give_up_s = time.monotonic() + 20
    while not (messages := control.receive()):
        assert time.monotonic() < give_up_s
        control.wait(0.01)
    return messages


def test_a_peer_hung_up_on_is_dialled_anew() -> None:
    here, there = ControlPlane("here", "127.0.0.1", 0), ControlPlane("there", "127.0.0.1", 0)
    links = Links(here)
    try:
        assert links.send(there.endpoint, Heartbeat(())) == ""
        (first,) = heard(there)
        links.hang_up(there.endpoint)
        links.hang_up(first.peer)
        assert (here._dealers, links._dialled, links._endpoint_of) == ({}, {}, {})
        assert links.send(there.endpoint, Heartbeat(())) == ""
        (second,) = heard(there)
        assert first.peer != second.peer
        assert second.peer.startswith(INBOUND)
        assert len(here._dealers) == 1
    finally:
        here.close()
        there.close()
