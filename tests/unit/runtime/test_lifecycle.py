"""Start, stop, and errors while opening."""

from __future__ import annotations

import threading
from unittest import mock

import pytest

from pdkv_connector.config import Config
from pdkv_connector.errors import HandshakeRefused, TransportError
from pdkv_connector.runtime import runtime as runtime_module
from pdkv_connector.runtime.runtime import Runtime
from pdkv_connector.session.messages import Facts, LayerFact
from pdkv_connector.transport.registry import open_transport
from tests.unit.runtime.prompts import GROUP_OF_LAYER, NUM_HEADS, NUM_LAYERS, Prompt
from tests.unit.runtime.rank import EVERY_HEAD, SETTINGS, Rank, toy_facts
from tests.unit.runtime.roles import Decode, Prefill


def build(rank: Rank, facts: Facts | None = None, **settings: object) -> Runtime:
    """A second runtime over a rank's memory, not started."""
    config = Config.from_sources({**SETTINGS, **settings}, {})
    return Runtime(config, "second", facts or toy_facts(), rank.memory, GROUP_OF_LAYER)


def port_of(runtime: Runtime) -> int:
    return int(runtime.endpoint.rpartition(":")[2])


def transfer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pdkv-transfer"]


def test_stopping_twice(decode: Decode) -> None:
    assert transfer_threads()
    decode.rank.runtime.stop()
    assert not transfer_threads()
    decode.rank.runtime.stop()
    assert decode.rank.runtime.take() is None


def test_stopping_without_a_start_gives_the_port_back(decode: Decode) -> None:
    idle = build(decode.rank)
    port = port_of(idle)
    idle.stop()
    again = build(decode.rank, control_port=port)
    assert port_of(again) == port
    again.stop()


def test_the_engine_may_go_on_calling_after_the_stop(prefill: Prefill) -> None:
    prompt = Prompt(40)
    prefill.offer(prompt)
    prefill.rank.runtime.stop()
    prefill.compute(prompt, prompt.needs()[0])
    prefill.preempt(prompt)
    prefill.finish(prompt)
    assert not transfer_threads()


def test_stop_while_a_transfer_is_under_way(prefill: Prefill, decode: Decode) -> None:
    prompt = Prompt(300)
    decode.want(prompt, prefill)
    prefill.run(prompt)
    decode.rank.wait_slabs(1)
    decode.rank.runtime.stop()
    prefill.rank.runtime.stop()
    assert not transfer_threads()
    assert decode.wrong_elements() == 0


def test_case_c20_a_taken_port_or_a_strange_host_is_named(decode: Decode) -> None:
    taken = port_of(decode.rank.runtime)
    with pytest.raises(TransportError, match=rf"cannot listen on 127.0.0.1:{taken}.*choose a free port"):
        build(decode.rank, control_port=taken)
    with pytest.raises(TransportError, match=r"cannot listen on 192\.0\.2\.1"):
        build(decode.rank, control_host="192.0.2.1")


def test_the_rank_is_added_to_a_fixed_port(decode: Decode) -> None:
    taken = port_of(decode.rank.runtime)
    with pytest.raises(TransportError, match=f":{taken}"):
        build(decode.rank, toy_facts(tp_rank=1, tp_size=2), control_port=taken - 1)


def test_a_failed_start_leaves_nothing_open(decode: Decode) -> None:
    idle = build(decode.rank)
    port = port_of(idle)
    idle.stop()
    strange = tuple(LayerFact(f"layer.{i}", 2, EVERY_HEAD, NUM_HEADS, "int3", 0) for i in range(NUM_LAYERS))
    with pytest.raises(HandshakeRefused, match="'int3'") as caught:
        build(decode.rank, toy_facts(layers=strange), control_port=port)
    again = build(decode.rank, control_port=port)
    again.stop()
    assert caught.tb is not None, "kept until here, and with it what a collector would have closed"


@pytest.mark.parametrize("peer_timeout_s", [4.0, 30.0])
def test_writes_end_before_the_quarantine_does(decode: Decode, peer_timeout_s: float) -> None:
    """A write begun at the end of a lease may take twice its limit; its slot rests that much longer than the lease."""
    with mock.patch.object(runtime_module, "open_transport", wraps=open_transport) as opened:
        runtime = build(decode.rank, transport="loopback", peer_timeout_s=peer_timeout_s)
    runtime.stop()
    assert 2 * opened.call_args.kwargs["write_limit_s"] <= peer_timeout_s
