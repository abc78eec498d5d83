"""Which engine is sent what, and in which order."""

import asyncio
import json

import pytest

from tests.unit.proxy.stub_engine import WORDS, StubEngine, proxy_over, serving

ASK = {"model": "m", "prompt": "Once upon a time", "max_tokens": 7, "temperature": 0.0}


def _text(events: str) -> list[str]:
    lines = [line.removeprefix("data: ") for line in events.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line)["choices"][0]["text"] for line in lines[:-1]]


def test_concurrent_asks_both_before_either_has_answered() -> None:
    async def scenario() -> None:
        async with StubEngine("prefill").running() as p, StubEngine("decode").running() as d:
            p.gate.clear()
            d.gate.clear()
            async with proxy_over([p.url], [d.url]) as rig:
                asked = asyncio.create_task(rig.post(ASK))
                async with asyncio.timeout(10):
                    await p.asked.wait()
                    await d.asked.wait()
                p.gate.set()
                d.gate.set()
                status, answer = await asked
        assert (status, answer["choices"][0]["text"]) == (200, "".join(WORDS))
        to_p, to_d = p.bodies[0]["kv_transfer_params"], d.bodies[0]["kv_transfer_params"]
        transfer_id = to_p["pdkv"]["transfer_id"]
        assert to_p == {"do_remote_decode": True, "do_remote_prefill": False, "pdkv": {"transfer_id": transfer_id}}
        assert to_d == {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": "engine-1",
            "remote_host": "127.0.0.1",
            "remote_port": 7000,
            "tp_size": 1,
            "pdkv": {"transfer_id": transfer_id, "endpoints": ["127.0.0.1:7000"], "tp_size": 1, "pp_size": 1},
        }

    asyncio.run(scenario())


def test_sequential_asks_decode_only_with_the_prefill_answer() -> None:
    async def scenario() -> None:
        async with StubEngine("prefill").running() as p, StubEngine("decode").running() as d:
            p.gate.clear()
            async with proxy_over([p.url], [d.url], sequential=True) as rig:
                asked = asyncio.create_task(rig.post(ASK))
                async with asyncio.timeout(10):
                    await p.asked.wait()
                await asyncio.sleep(0.1)
                assert not d.asked.is_set()
                p.gate.set()
                assert (await asked)[0] == 200
        assert p.probes == 0
        assert p.bodies[0]["kv_transfer_params"]["do_remote_decode"] is True
        assert p.bodies[0]["kv_transfer_params"]["remote_engine_id"] is None
        assert d.bodies[0]["kv_transfer_params"] == p.params

    asyncio.run(scenario())


@pytest.mark.parametrize("sequential", [False, True])
def test_a_stream_passes_through_event_by_event(sequential: bool) -> None:
    async def scenario() -> None:
        p, d = StubEngine("prefill"), StubEngine("decode")
        async with serving(p, d, sequential=sequential) as rig:
            status, events = await rig.post({**ASK, "stream": True, "stream_options": {"include_usage": True}})
        assert status == 200
        assert _text(events) == WORDS
        assert p.bodies[0]["stream"] is False
        assert "stream_options" not in p.bodies[0]
        assert d.bodies[0]["stream_options"] == {"include_usage": True}

    asyncio.run(scenario())


def test_chat_goes_to_the_chat_path_of_both_with_both_token_limits() -> None:
    async def scenario() -> None:
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 50, "tools": [{"x": 1}]}
        p, d = StubEngine("prefill"), StubEngine("decode")
        async with serving(p, d) as rig:
            assert (await rig.post(chat, "/v1/chat/completions"))[0] == 200
        assert p.paths == d.paths == ["/v1/chat/completions"]
        assert (p.bodies[0]["max_tokens"], p.bodies[0]["max_completion_tokens"]) == (1, 1)
        assert p.bodies[0]["tools"] == chat["tools"]
        assert {k: v for k, v in d.bodies[0].items() if k != "kv_transfer_params"} == chat

    asyncio.run(scenario())


def test_requests_take_turns_over_servers() -> None:
    async def scenario() -> None:
        engines = [StubEngine("prefill"), StubEngine("prefill"), StubEngine("decode"), StubEngine("decode")]
        async with engines[0].running(), engines[1].running(), engines[2].running(), engines[3].running():
            urls = [engine.url for engine in engines]
            async with proxy_over(urls[:2], urls[2:]) as rig:
                for _ in range(4):
                    assert (await rig.post(ASK))[0] == 200
        assert [len(engine.bodies) for engine in engines] == [2, 2, 2, 2]

    asyncio.run(scenario())


def test_what_needs_the_prompt_computed_on_decode_never_reaches_prefill() -> None:
    async def scenario() -> None:
        p, d = StubEngine("prefill"), StubEngine("decode")
        async with serving(p, d) as rig:
            assert (await rig.post({**ASK, "prompt_logprobs": 1}))[0] == 200
            metrics = (await rig.get("/metrics"))[1]
        assert p.bodies == []
        assert "kv_transfer_params" not in d.bodies[0]
        assert 'local_prefill_total{reason="prompt_logprobs"} 1' in metrics
        assert 'requests_total{dispatch="local",status="200"} 1' in metrics

    asyncio.run(scenario())


def test_a_client_cannot_name_the_host_to_fetch_kv_from() -> None:
    async def scenario() -> None:
        planted = {"do_remote_prefill": True, "remote_host": "192.0.2.1", "remote_port": 1}
        p, d = StubEngine("prefill"), StubEngine("decode")
        async with serving(p, d) as rig:
            await rig.post({**ASK, "kv_transfer_params": planted})
            await rig.post({**ASK, "kv_transfer_params": planted, "n": 2})
        assert d.bodies[0]["kv_transfer_params"]["remote_host"] == "127.0.0.1"
        assert "kv_transfer_params" not in d.bodies[1]

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_names_its_transfer(stream: bool) -> None:
    async def scenario() -> None:
        p, d = StubEngine("prefill"), StubEngine("decode")
        async with serving(p, d) as rig:
            async with rig.http.post(rig.url + "/v1/completions", json={**ASK, "stream": stream}) as response:
                named = response.headers["X-Pdkv-Transfer-Id"]
            async with rig.http.post(rig.url + "/v1/completions", json={**ASK, "n": 2}) as response:
                assert "X-Pdkv-Transfer-Id" not in response.headers
        assert named == p.bodies[0]["kv_transfer_params"]["pdkv"]["transfer_id"]

    asyncio.run(scenario())


def test_authorization_reaches_both_engines() -> None:
    async def scenario() -> None:
        p, d = StubEngine("prefill"), StubEngine("decode")
        async with serving(p, d) as rig:
            headers = {"Authorization": "Bearer abc", "X-Request-Id": "r1", "Cookie": "c=1"}
            async with rig.http.post(rig.url + "/v1/completions", json=ASK, headers=headers) as response:
                assert response.status == 200
        for engine in (p, d):
            assert engine.headers[0]["Authorization"] == "Bearer abc"
            assert engine.headers[0]["X-Request-Id"] == "r1"
            assert "Cookie" not in engine.headers[0]

    asyncio.run(scenario())
