"""Brings a transfer into a state of the protocol and leaves it there, for a fault to meet it.

P's states: awaiting_request, awaiting_consumer, streaming, fencing. D's: connecting, registering, receiving, delivered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.engines.rig.dialect import Params
from tests.engines.rig.pair import EnginePair, new_transfer_id
from tests.engines.rig.process import Finished, wait_until
from tests.engines.rig.testbed import MAX_TOKENS, make_prompt
from tests.faults.rig.ground import LONG, SHORT, Ground, through
from tests.faults.rig.relay import Relay

MANY_TOKENS = 48
SETTLE_S = 0.3
LONG_STATES = ("streaming", "fencing", "receiving")


@dataclass
class Moment:
    """A transfer in a state; a leg that was not sent yet is None."""

    ground: Ground
    pair: EnginePair
    via: Relay | None
    state: str
    transfer_id: str
    prompt: list[int]
    reference: list[int]
    params: Params
    on_prefill: str | None = None
    on_decode: str | None = None

    @property
    def relay(self) -> Relay:
        """What stands between D and P's control channel."""
        assert self.via is not None, "there is no relay"
        return self.via

    def ask_prefill(self) -> str:
        """Send P its half."""
        self.on_prefill = self.pair.submit_prefill(self.prompt, self.transfer_id)
        return self.on_prefill

    def ask_decode(self) -> str:
        """Send D its half."""
        self.on_decode = self.pair.decode.submit(self.prompt, len(self.reference), self.params)
        return self.on_decode

    def decoded(self) -> Finished:
        """D's answer; D is asked now where it had not been."""
        return self.pair.decode.wait(self.on_decode or self.ask_decode())

    @property
    def remote(self) -> Callable[[Finished], bool]:
        """Whether all KV that D used came from P."""
        return lambda decode: decode.num_computed == len(self.reference)

    def reasons(self) -> list[str]:
        """Why the transfer failed on D."""
        return self.ground.timeline(self.pair.decode).reasons(self.transfer_id)

    def await_decode(self, event: str) -> None:
        """Wait for an event of this transfer on D."""
        self.ground.timeline(self.pair.decode).wait_for(self.transfer_id, event)

    def num_unended_writes(self) -> int:
        """Writes of P that have not ended."""
        timeline = self.ground.timeline(self.pair.prefill)
        return len(timeline.events(self.transfer_id, "posted")) - len(timeline.events(self.transfer_id, "written"))


def reach(ground: Ground, state: str) -> Moment:
    """A transfer in `state`, its control messages going through a relay."""
    return _reach(ground, state, ground.relay())


def stream(ground: Ground) -> Moment:
    """A transfer that streams, with nothing between D and P."""
    return _reach(ground, "streaming", None)


def _reach(ground: Ground, state: str, relay: Relay | None) -> Moment:
    pair = ground.pair()
    prompt = make_prompt(LONG if state in LONG_STATES else SHORT, seed=3)
    reference = ground.reference(prompt, MANY_TOKENS if state == "delivered" else MAX_TOKENS)
    transfer_id = new_transfer_id(state)
    params = through(relay, pair.consumer_params(transfer_id))
    moment = Moment(ground, pair, relay, state, transfer_id, prompt, reference, params)
    STATES[state](moment)
    return moment


def _awaiting_request(moment: Moment) -> None:
    moment.ask_decode()
    moment.relay.wait_for("alive")


def _awaiting_consumer(moment: Moment) -> None:
    prefill = moment.pair.prefill
    prefill.wait(moment.ask_prefill())
    assert prefill.free_blocks() < prefill.facts["num_blocks"] - 1, "P holds nothing for a consumer"


def _streaming(moment: Moment) -> None:
    moment.ask_decode()
    on_prefill = moment.ask_prefill()
    moment.await_decode("landed")
    assert not moment.pair.prefill.ended(on_prefill), "P had finished: too late to test anything"


def _fencing(moment: Moment) -> None:
    """P's request is aborted while writes to D are under way that cannot end: D is paused, and stays so."""
    _streaming(moment)
    moment.pair.decode.process.pause()
    wait_until(lambda: moment.num_unended_writes() > 0, "a write that does not end", 30.0)
    time.sleep(SETTLE_S)
    assert moment.on_prefill is not None
    assert moment.pair.prefill.abort(moment.on_prefill), "P had finished: too late to abort"
    assert moment.num_unended_writes() > 0, "the writes have ended: nothing is fenced"


def _connecting(moment: Moment) -> None:
    moment.relay.hold()
    _both(moment)


def _registering(moment: Moment) -> None:
    moment.relay.hold_from("register")
    _both(moment)
    moment.relay.wait_for("register")


def _delivered(moment: Moment) -> None:
    """D has all KV and decodes; P is not told."""
    moment.relay.hold_from("delivered")
    _both(moment)
    moment.await_decode("complete")


def _both(moment: Moment) -> None:
    moment.ask_decode()
    moment.ask_prefill()
    moment.await_decode("registered")


STATES: dict[str, Callable[[Moment], None]] = {
    "awaiting_request": _awaiting_request,
    "awaiting_consumer": _awaiting_consumer,
    "streaming": _streaming,
    "fencing": _fencing,
    "connecting": _connecting,
    "registering": _registering,
    "receiving": _streaming,
    "delivered": _delivered,
}
