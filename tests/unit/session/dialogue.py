"""Both sessions, driven message by message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pdkv_connector.layout.topology import kv_heads_of
from pdkv_connector.session import actions as act
from pdkv_connector.session import events as ev
from pdkv_connector.session import messages as msg
from pdkv_connector.session.codec_advisor import Advice, Load
from pdkv_connector.session.consumer import ConsumerSession
from pdkv_connector.session.producer import ProducerSession
from pdkv_connector.session.timing import Timing
from pdkv_connector.types import Credit, Span

NUM_TOKENS = 8
TIMING = Timing()
LEASE_OVER_S = TIMING.lease_s + 1
ActionT = TypeVar("ActionT")
MessageT = TypeVar("MessageT")


def facts(tp_rank: int = 0, tp_size: int = 1) -> msg.Facts:
    """One layer of two heads; a token of a head is 2 bytes."""
    layer = msg.LayerFact("layer0", 2, kv_heads_of(2, tp_rank, tp_size), 1, "int8", 0)
    return msg.Facts("toy", "d", 2, tp_rank, tp_size, 0, 1, ("split", "raw"), (layer,))


def of(kind: type[ActionT], actions: list[act.Action]) -> list[ActionT]:
    """Actions of one kind."""
    return [action for action in actions if isinstance(action, kind)]


def said(kind: type[MessageT], actions: list[act.Action]) -> list[MessageT]:
    """Messages of one kind among the actions."""
    return [action.message for action in actions if isinstance(action, act.Send) and isinstance(action.message, kind)]


def hello(metadata: bytes = b"") -> msg.Hello:
    version = msg.PROTOCOL_VERSION
    return msg.Hello("D", version, version, facts(), "sim", metadata, msg.RingSpec(0, 32, 4, 0, "DRAM"), (5,))


def register(num_consumers: int = 1, credits: tuple[Credit, ...] = (Credit(0, 0),)) -> msg.Register:
    want = msg.Want((0,), Span(0, NUM_TOKENS), Span(0, 2))
    return msg.Register("t", 1, NUM_TOKENS, "digest", num_consumers, (want,), credits)


class Advisor:
    """Gives the same advice always; `loads` is what it was asked with."""

    def __init__(self, codec: str = "raw", raw_bytes: int = 32) -> None:
        self.advice: Advice | None = Advice(codec, raw_bytes)
        self.loads: list[Load] = []
        self.s_per_byte = 0.0

    def advise(self, leg: act.LegKey, decoders: Mapping[str, int], load: Load, now: float) -> Advice | None:
        self.loads.append(load)
        assert self.advice is None or self.advice.codec in decoders
        return self.advice

    def predicted_s(self, leg: act.LegKey, num_bytes: int) -> float:
        return self.s_per_byte * num_bytes


class Prefill:
    """A producer session that consumer `D` has greeted and whose engine was offered transfer `t`."""

    def __init__(self, num_slots: int = 2, slot_bytes: int = 32, advisor: Advisor | None = None) -> None:
        self.advisor = advisor or Advisor()
        self.session = ProducerSession("P", facts(), "sim", b"", slot_bytes, num_slots, TIMING, self.advisor)
        self.hear(hello())
        self.session.handle(ev.Offered("t", NUM_TOKENS, "digest"), 0.0)

    def hear(self, message: msg.Message, now: float = 0.0, peer: str = "D") -> list[act.Action]:
        return self.session.handle(ev.Heard(peer, "d#1", message), now)

    def compute(self, now: float = 0.0) -> list[act.Action]:
        return self.session.handle(ev.Ready("t", Span(0, 1), Span(0, NUM_TOKENS)), now)

    def finish(self, now: float = 0.0) -> list[act.Action]:
        return self.session.handle(ev.Finished("t"), now)

    def gathered(self, gather: act.Gather, now: float = 0.0) -> list[act.Write]:
        return of(act.Write, self.session.handle(ev.Gathered(gather.key, 32, 7), now))


class Decode:
    """A consumer session that wants transfer `t` from `tp_size` producer ranks, `P0` and so on."""

    def __init__(self, tp_size: int = 1, num_slots: int = 4, window_slots: int = 2) -> None:
        ring = msg.RingSpec(0, 32, num_slots, 0, "DRAM")
        self.tp_size = tp_size
        self.session = ConsumerSession("D", facts(), "sim", b"", ring, window_slots, TIMING)

    def want(self, transfer_id: str = "t", engine_id: str = "P", now: float = 0.0) -> list[act.Action]:
        endpoints = tuple(f"P{rank}" for rank in range(self.tp_size))
        needs = (Span(0, NUM_TOKENS),)
        wanted = ev.Wanted(transfer_id, engine_id, endpoints, self.tp_size, NUM_TOKENS, "digest", needs)
        return self.session.handle(wanted, now)

    def hear(self, message: msg.Message, now: float = 0.0, peer: str = "P0", process: str = "#1") -> list[act.Action]:
        return self.session.handle(ev.Heard(peer, peer + process, message), now)

    def welcome(self, peer: str = "P0", lease_s: float = TIMING.lease_s, process: str = "#1") -> list[act.Action]:
        rank = int(peer[1:])
        welcome = msg.Welcome("P", 1, facts(rank, self.tp_size), ("split", "raw"), b"", lease_s)
        return self.hear(welcome, peer=peer, process=process)

    def alive(self, peer: str = "P0", num_ready: int = NUM_TOKENS, now: float = 0.0) -> list[act.Action]:
        state = msg.ProducerState.STREAMING if num_ready else msg.ProducerState.QUEUED
        return self.hear(msg.Alive((msg.Standing("t", 1, state, num_ready),)), now, peer)

    def land(self, credit: Credit, seq: int, tokens: Span, now: float = 0.0, peer: str = "P0") -> list[act.Action]:
        heads = 2 // self.tp_size
        slab = msg.Slab("t", 1, seq, 0, Span(0, 1), tokens, credit, "raw", 2 * heads * len(tokens), 7)
        return self.session.handle(ev.Landed(peer + "#1", slab), now)

    def scattered(self, seq: int, now: float = 0.0, peer: str = "P0") -> list[act.Action]:
        return self.session.handle(ev.Scattered(act.SlabKey(act.LegKey("t", peer, 1), seq)), now)

    @property
    def num_free(self) -> int:
        return self.session.book.ring.num_free
