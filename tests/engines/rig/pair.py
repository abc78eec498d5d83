"""A prefill and a decode engine, and one request over both."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.engines.rig.dialect import Dialect, Params, for_consumer
from tests.engines.rig.process import EngineProcess, Finished

Order = Literal["concurrent", "consumer_first", "sequential"]
_numbers = itertools.count()


def new_transfer_id(label: str = "t") -> str:
    """A transfer id no other test uses."""
    return f"{label}-{os.getpid()}-{next(_numbers)}"


@dataclass(frozen=True)
class Ticket:
    """One request under way on both engines; `on_decode` is None until P has answered, in sequential order.

    `pdkv` are wishes both requests carry, such as `digest`.
    """

    transfer_id: str
    on_prefill: str
    on_decode: str | None
    pdkv: Params

    def decoding(self) -> str:
        """The request on D. Raises AssertionError while there is none."""
        assert self.on_decode is not None, "D has not been given the request yet"
        return self.on_decode


@dataclass(frozen=True)
class Outcome:
    """How one request ended on both engines."""

    transfer_id: str
    prefill: Finished
    decode: Finished


@dataclass
class EnginePair:
    """`prefill` and `decode` engines of one connector."""

    prefill: EngineProcess
    decode: EngineProcess
    dialect: Dialect
    _facts: dict[int, Params] = field(default_factory=dict)

    def producer_facts(self) -> Params:
        """Where P's connector listens, learned once from a probe request."""
        if self.prefill.process.pid not in self._facts:
            probe = self.prefill.generate([1, 2, 3], 1, self.dialect.probe())
            assert probe.kv_transfer_params, f"the probe returned no kv_transfer_params: {probe}"
            self._facts[self.prefill.process.pid] = probe.kv_transfer_params
        return self._facts[self.prefill.process.pid]

    def consumer_params(self, transfer_id: str, **pdkv: Any) -> Params:
        """What D's request carries when nothing has come back from P yet."""
        return for_consumer(self.producer_facts(), transfer_id, **pdkv)

    def submit_prefill(self, prompt: list[int], transfer_id: str, **pdkv: Any) -> str:
        """Queue the prefill half."""
        return self.prefill.submit(prompt, 1, self.dialect.for_producer(transfer_id, **pdkv))

    def submit_decode(self, prompt: list[int], max_tokens: int, transfer_id: str, **pdkv: Any) -> str:
        """Queue the decode half, whether or not P knows of the transfer yet."""
        return self.decode.submit(prompt, max_tokens, self.consumer_params(transfer_id, **pdkv))

    def start(self, prompt: list[int], max_tokens: int, order: Order, **pdkv: Any) -> Ticket:
        """Queue one request on both engines in the given order, without waiting where the order allows it."""
        transfer_id = new_transfer_id(order)
        if order == "sequential":
            return Ticket(transfer_id, self.submit_prefill(prompt, transfer_id, **pdkv), None, pdkv)
        self.producer_facts()
        if order == "consumer_first":
            decode = self.submit_decode(prompt, max_tokens, transfer_id, **pdkv)
            return Ticket(transfer_id, self.submit_prefill(prompt, transfer_id, **pdkv), decode, pdkv)
        prefill = self.submit_prefill(prompt, transfer_id, **pdkv)
        return Ticket(transfer_id, prefill, self.submit_decode(prompt, max_tokens, transfer_id, **pdkv), pdkv)

    def finish(self, ticket: Ticket, prompt: list[int], max_tokens: int) -> Outcome:
        """Wait for both halves; in sequential order D is sent now, with P's answer."""
        prefill = self.prefill.wait(ticket.on_prefill)
        on_decode = ticket.on_decode
        if on_decode is None:
            on_decode = self.decode.submit(prompt, max_tokens, _forwarded(prefill.kv_transfer_params, ticket.pdkv))
        return Outcome(ticket.transfer_id, prefill, self.decode.wait(on_decode))

    def transfer(self, prompt: list[int], max_tokens: int, order: Order, **pdkv: Any) -> Outcome:
        """Run one request over both engines."""
        return self.finish(self.start(prompt, max_tokens, order, **pdkv), prompt, max_tokens)

    def reset(self) -> None:
        """Forget cached prefixes on both engines; waits until neither holds a block for an earlier request."""
        self.prefill.reset_prefix_cache()
        self.decode.reset_prefix_cache()


def _forwarded(answer: Params | None, wishes: Params) -> Params | None:
    """P's answer as it is; with wishes D gets them too, and not P's digests, which it might merely repeat."""
    if answer is None or not wishes:
        return answer
    pdkv = {key: value for key, value in answer["pdkv"].items() if key != "digests"}
    return {**answer, "pdkv": {**pdkv, **wishes}}
