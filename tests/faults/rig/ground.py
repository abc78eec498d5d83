"""The pair of engines that all faults are inflicted on, and what must hold afterwards."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.engines.rig.dialect import Params, free_port
from tests.engines.rig.pair import EnginePair, new_transfer_id
from tests.engines.rig.process import EngineProcess, Finished, wait_until
from tests.engines.rig.spec import EngineSpec
from tests.engines.rig.testbed import MAX_TOKENS, Testbed, assert_released, make_prompt
from tests.engines.rig.timeline import Timeline
from tests.faults.rig.network import BreakableLink
from tests.faults.rig.relay import Relay

LEASE_S = 5.0
PEER_TIMEOUT_S = 4.0
PRODUCER_TIMEOUT_S = 8.0
WRITES_END_S = PEER_TIMEOUT_S
"""A write to a stopped peer is given up after this, and its request's blocks come back."""
BRISK: dict[str, float] = {
    "lease_s": LEASE_S,
    "heartbeat_s": 0.5,
    "retry_s": 0.25,
    "resend_s": 1.0,
    "peer_timeout_s": PEER_TIMEOUT_S,
    "producer_timeout_s": PRODUCER_TIMEOUT_S,
    "stall_timeout_s": 20.0,
}
SLACK_S = 40.0
"""Of a busy machine, on top of every bound that is checked."""
REST = ("vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting")
SHORT, LONG = 300, 1500
ROLES = ("producer", "consumer")


@dataclass
class Ground:
    """`pair()` gives both engines, started again where they have ended, at the addresses they had before."""

    testbed: Testbed
    label: str = "faults"
    settings: dict[str, Any] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)
    link: BreakableLink | None = None
    _specs: dict[str, EngineSpec] = field(default_factory=dict)
    _relays: list[Relay] = field(default_factory=list)
    _last: EnginePair | None = None

    def spec(self, role: str) -> EngineSpec:
        """The engine of `role`, on a control port of its own for good."""
        if role not in self._specs:
            extra = {**BRISK, "control_port": free_port(), **self.settings}
            args = {"disable_log_stats": False, **self.args}
            env = {}
            if self.link is not None:
                host = self.link.hosts[ROLES.index(role)]
                extra, env = {**extra, "control_host": host}, {"VLLM_HOST_IP": host}
            spec = self.testbed.spec(role, "smollm2", label=self.label, extra=extra, args=args, env=env)
            netns = self.link.namespaces[ROLES.index(role)] if self.link else ""
            self._specs[role] = replace(spec, netns=netns)
        return self._specs[role]

    def pair(self) -> EnginePair:
        """Both engines, at rest."""
        self._last = self.testbed.pair(self.spec("producer"), self.spec("consumer"))
        return self._last

    @property
    def control_port(self) -> int:
        """P's."""
        config = self.spec("producer").kv_transfer_config
        assert config is not None
        return int(config["kv_connector_extra_config"]["control_port"])

    def relay(self) -> Relay:
        """A relay in front of P's control port."""
        self._relays.append(Relay(f"127.0.0.1:{self.control_port}"))
        return self._relays[-1]

    def clear(self) -> None:
        """End the relays of the last test, and what it left paused."""
        while self._relays:
            self._relays.pop().close()
        for engine in (self._last.prefill, self._last.decode) if self._last else ():
            engine.process.resume()

    def timeline(self, engine: EngineProcess) -> Timeline:
        """What the engine's connector recorded, over all its restarts."""
        return self.testbed.timeline(engine)

    def reference(self, prompt: list[int], max_tokens: int = MAX_TOKENS) -> list[int]:
        """Tokens of D alone."""
        return self.testbed.reference(self.pair().decode, prompt, max_tokens)


def through(relay: Relay | None, params: Params) -> Params:
    """The same params, with P behind a relay."""
    if relay is None:
        return params
    return {**params, "pdkv": {**params["pdkv"], "endpoints": [relay.address]}}


def is_remote(decode: Finished, max_tokens: int = MAX_TOKENS) -> bool:
    """True when D computed the last prompt token only: all other KV came from P."""
    return decode.num_computed == max_tokens


def assert_at_rest(*engines: EngineProcess, limit_s: float) -> float:
    """Every block is back, in the pool and by vLLM's own metrics; returns the seconds that took."""
    begun = time.monotonic()
    assert_released(*engines, timeout_s=limit_s + SLACK_S)
    for engine in engines:
        wait_until(partial(_metrics_at_rest, engine), f"rest of {engine.spec.name} by its metrics", SLACK_S)
    return time.monotonic() - begun


def _metrics_at_rest(engine: EngineProcess) -> bool:
    metrics = engine.metrics()
    return not any(metrics[name] for name in REST)


def first_remote_s(ground: Ground) -> float:
    """Seconds until P's KV is used by D again; each attempt must give the right tokens in any case."""
    pair, prompt = ground.pair(), make_prompt(SHORT, seed=5)
    reference = ground.reference(prompt)
    begun = time.monotonic()
    while time.monotonic() - begun < SLACK_S:
        transfer_id = new_transfer_id("again")
        prefill = pair.submit_prefill(prompt, transfer_id)
        decode = pair.decode.wait(pair.submit_decode(prompt, MAX_TOKENS, transfer_id))
        assert decode.token_ids == reference
        pair.prefill.wait(prefill)
        if is_remote(decode):
            return time.monotonic() - begun
        pair.reset()
    raise AssertionError(f"D took no KV from P within {SLACK_S} s: {ground.timeline(pair.decode).reasons(transfer_id)}")


def assert_both_serve(ground: Ground) -> None:
    """P and D each compute the right tokens alone, and D decodes from P's KV."""
    pair, prompt = ground.pair(), make_prompt(SHORT, seed=6)
    reference = ground.reference(prompt)
    for engine in (pair.prefill, pair.decode):
        assert engine.generate(prompt, MAX_TOKENS).token_ids == reference
    pair.reset()
    outcome = pair.transfer(prompt, MAX_TOKENS, "concurrent")
    assert outcome.decode.token_ids == reference
    assert is_remote(outcome.decode), ground.timeline(pair.decode).reasons(outcome.transfer_id)
    pair.reset()
