"""What the client is told, and which legs are closed, when something breaks."""

import asyncio
import json
import socket

import pytest

from tests.unit.proxy.stub_engine import StubEngine, proxy_over, serving, until

ASK = {"model": "m", "prompt": "Once upon a time", "max_tokens": 7}
STREAM = {**ASK, "stream": True}


def _unused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_prefill_400_passes_through_and_closes_the_decode_leg() -> None:
    async def scenario() -> None:
        async with StubEngine("prefill", answer_status=400).running() as p, StubEngine("decode").running() as d:
            d.gate.clear()
            async with proxy_over([p.url], [d.url]) as rig:
                status, answer = await rig.post(STREAM)
                async with asyncio.timeout(10):
                    await d.aborted.wait()
                assert rig.proxy.fleet.ready()
        assert (status, answer["error"]["message"]) == (400, "prompt is too long")

    asyncio.run(scenario())


def test_decode_400_passes_through_and_closes_the_prefill_leg() -> None:
    async def scenario() -> None:
        async with StubEngine("prefill").running() as p, StubEngine("decode", answer_status=422).running() as d:
            p.gate.clear()
            async with proxy_over([p.url], [d.url]) as rig:
                status, answer = await rig.post(ASK)
                async with asyncio.timeout(10):
                    await p.aborted.wait()
        assert (status, answer["error"]["message"]) == (422, "prompt is too long")

    asyncio.run(scenario())


def test_prefill_500_is_502_and_names_the_server() -> None:
    async def scenario() -> None:
        p_engine = StubEngine("prefill", answer_status=500, answer_text="EngineCore died")
        async with p_engine.running() as p, StubEngine("decode").running() as d:
            d.gate.clear()
            async with proxy_over([p.url], [d.url]) as rig:
                status, answer = await rig.post(ASK)
        assert status == 502
        assert p.url in answer["error"]["message"]
        assert "EngineCore died" in answer["error"]["message"]

    asyncio.run(scenario())


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_server_that_is_gone_is_502_once_then_503_and_the_other_leg_is_closed(role: str) -> None:
    async def scenario() -> None:
        async with StubEngine("the other").running() as other:
            other.gate.clear()
            gone = _unused_url()
            urls = ([gone], [other.url]) if role == "prefill" else ([other.url], [gone])
            async with proxy_over(*urls, health_interval_s=30.0) as rig:
                server = rig.proxy.fleet.of(role)[0]
                server.restore()  # As if it had been there a moment ago.
                server.probed = other.params
                first, second = await rig.post(ASK), await rig.post(ASK)
                async with asyncio.timeout(10):
                    await other.aborted.wait()
        assert [first[0], second[0]] == [502, 503]
        assert f"{role} server {gone} cannot be reached" in first[1]["error"]["message"]
        assert gone in second[1]["error"]["message"]

    asyncio.run(scenario())


def test_a_prefill_server_that_comes_back_is_probed_again() -> None:
    async def scenario() -> None:
        p, d = StubEngine("prefill"), StubEngine("decode")
        async with serving(p, d) as rig:
            assert (await rig.post(ASK))[0] == 200
            p.sick = True
            await until(lambda: not rig.proxy.fleet.ready())
            assert (await rig.post(ASK))[0] == 503
            assert (await rig.get("/health"))[0] == 503
            p.sick, p.engine_id = False, "engine-2"
            await until(rig.proxy.fleet.ready)
            assert (await rig.post(ASK))[0] == 200
            assert (await rig.get("/health"))[0] == 200
        assert d.bodies[-1]["kv_transfer_params"]["remote_engine_id"] == "engine-2"

    asyncio.run(scenario())


def test_a_restart_between_two_checks_fails_that_request_and_probes_again() -> None:
    async def scenario() -> None:
        async with StubEngine("prefill").running() as p, StubEngine("decode").running() as d:
            d.gate.clear()
            async with proxy_over([p.url], [d.url]) as rig:
                p.engine_id = "engine-2"
                status, answer = await rig.post(ASK)
                assert (status, p.url in answer["error"]["message"]) == (502, True)
                assert "engine-2" in answer["error"]["message"]
                d.gate.set()
                await until(rig.proxy.fleet.ready)
                assert (await rig.post(ASK))[0] == 200

    asyncio.run(scenario())


def test_a_prefill_server_that_is_not_ours_gets_no_requests_and_says_why() -> None:
    async def scenario() -> None:
        p, d = StubEngine("prefill", answers_probes=False), StubEngine("decode")
        async with serving(p, d) as rig:
            status, answer = await rig.post(ASK)
        assert status == 503
        assert "PDKVConnector" in answer["error"]["message"]

    asyncio.run(scenario())


def test_a_prefill_server_too_slow_is_504() -> None:
    async def scenario() -> None:
        async with StubEngine("prefill").running() as p, StubEngine("decode").running() as d:
            p.gate.clear()
            d.gate.clear()
            async with proxy_over([p.url], [d.url], prefill_timeout_s=0.2) as rig:
                status, answer = await rig.post(STREAM)
                async with asyncio.timeout(10):
                    await asyncio.gather(p.aborted.wait(), d.aborted.wait())
        assert (status, p.url in answer["error"]["message"]) == (504, True)

    asyncio.run(scenario())


def test_a_decode_server_silent_before_its_first_token_is_504_although_it_sent_status_200() -> None:
    async def scenario() -> None:
        async with StubEngine("prefill").running() as p, StubEngine("decode").running() as d:
            d.gate.clear()
            async with proxy_over([p.url], [d.url], decode_timeout_s=0.2) as rig:
                status, answer = await rig.post(STREAM)
        assert (status, d.url in answer["error"]["message"]) == (504, True)

    asyncio.run(scenario())


def test_a_stream_cut_off_ends_in_an_error_event_and_no_done() -> None:
    async def scenario() -> None:
        p, d = StubEngine("prefill"), StubEngine("decode", break_after=1)
        async with serving(p, d) as rig:
            status, events = await rig.post(STREAM)
            metrics = (await rig.get("/metrics"))[1]
        assert status == 200
        assert '"one"' in events
        assert d.url in events.splitlines()[-2]
        assert "[DONE]" not in events
        assert f'upstream_failures_total{{kind="disconnect",role="decode",server="{d.url}"}} 1' in metrics

    asyncio.run(scenario())


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_aborts_what_is_running(stream: bool, sequential: bool) -> None:
    async def scenario() -> None:
        async with StubEngine("prefill").running() as p, StubEngine("decode").running() as d:
            p.gate.clear()
            d.gate.clear()
            running = [p] if sequential else [p, d]
            async with proxy_over([p.url], [d.url], sequential=sequential) as rig:
                asked = asyncio.create_task(rig.post({**ASK, "stream": stream}))
                async with asyncio.timeout(10):
                    await asyncio.gather(*(engine.asked.wait() for engine in running))
                    assert not p.aborted.is_set()
                    asked.cancel()
                    await asyncio.gather(*(engine.aborted.wait() for engine in running))
                await until(lambda: rig.proxy.counters.in_flight == 0)
                assert rig.proxy.counters.get("client_disconnects_total") == 1
                assert rig.proxy.fleet.ready()

    asyncio.run(scenario())


def test_a_client_that_leaves_in_mid_stream_aborts_decode() -> None:
    async def scenario() -> None:
        p, d = StubEngine("prefill"), StubEngine("decode", pause_after=1)
        async with serving(p, d) as rig:
            async with rig.http.post(rig.url + "/v1/completions", json=STREAM) as response:
                assert b"one" in await response.content.readany()
                assert not d.aborted.is_set()
            async with asyncio.timeout(10):
                await d.aborted.wait()

    asyncio.run(scenario())


def test_bad_bodies_never_reach_an_engine() -> None:
    async def scenario() -> None:
        p, d = StubEngine("prefill"), StubEngine("decode")
        async with serving(p, d, max_body_bytes=1000) as rig:
            answers = [await rig.post(body) for body in (b"{not json", b"[1]", b'"' + b"x" * 1001 + b'"')]
            assert (await rig.get("/v1/nothing"))[0] == 404
            assert json.loads((await rig.get("/v1/models"))[1])["data"] == [{"id": "model-of-decode"}]
        assert [status for status, _ in answers] == [400, 400, 413]
        assert all(answer["error"]["message"] for _, answer in answers)
        assert p.bodies == d.bodies == []

    asyncio.run(scenario())
