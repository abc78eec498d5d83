"""Shared state of the prefill side: transfers, peers, send slots, tombstones, and how things end."""

from __future__ import annotations

from collections import Counter, OrderedDict

from pdkv_connector.session import messages as msg
from pdkv_connector.session.actions import Action, Forget, LegKey, Release, Send
from pdkv_connector.session.codec_advisor import CodecAdvisor
from pdkv_connector.session.messages import RefuseCode
from pdkv_connector.session.producer_leg import ProducerLeg
from pdkv_connector.session.producer_transfer import ProducerTransfer
from pdkv_connector.session.states import ProducerPhase
from pdkv_connector.session.timing import Timing
from pdkv_connector.types import PeerId, TransferId

NUM_TOMBSTONES = 4096


class ProducerBook:
    """What a prefill rank knows of its transfers. Methods append to `actions`."""

    def __init__(self, num_layers: int, num_slots: int, timing: Timing, advisor: CodecAdvisor) -> None:
        self.timing = timing
        self.advisor = advisor
        self.num_layers = num_layers
        self.actions: list[Action] = []
        self.send_slots = list(range(num_slots))
        self.peers: dict[PeerId, tuple[msg.Hello, str]] = {}
        self.heard_at: dict[PeerId, float] = {}
        self.deaf_until = float("-inf")
        self.transfers: dict[TransferId, ProducerTransfer] = {}
        self.ended: OrderedDict[TransferId, str] = OrderedDict()
        self.turn: OrderedDict[LegKey, ProducerLeg] = OrderedDict()

    def find(self, peer: PeerId, transfer_id: TransferId, epoch: int) -> tuple[ProducerTransfer, ProducerLeg] | None:
        """The transfer and its leg towards `peer`, unless that leg is over."""
        transfer = self.transfers.get(transfer_id)
        leg = transfer.leg_of(peer, epoch) if transfer else None
        return (transfer, leg) if transfer and leg and not leg.over else None

    def leg_of(self, key: LegKey) -> tuple[ProducerTransfer, ProducerLeg] | None:
        """The transfer and the leg of this name, over or not."""
        transfer = self.transfers.get(key.transfer_id)
        leg = transfer.legs.get(key) if transfer else None
        return (transfer, leg) if transfer and leg else None

    def pump(self, now: float) -> None:
        """Start slabs round robin over the legs while credits, send slots and ready KV last.

        A send slot comes back when its slab is acknowledged. So no engine gets more of them than it leaves to others:
        one that stalls keeps at most half, a second one a quarter, and nobody waits for them.
        """
        if not (self.send_slots and self.turn):
            return
        held: Counter[str] = Counter()
        for key, leg in self.turn.items():
            held[self._engine_of(key)] += len(leg.outgoing)
        idle = 0
        while self.send_slots and self.turn and idle < len(self.turn):
            key, leg = self.turn.popitem(last=False)
            self.turn[key] = leg
            within = held[self._engine_of(key)] < len(self.send_slots)
            fenced = now - leg.heard_at > self.timing.lease_s  # its consumer may have given the slots to others
            start = within and not fenced
            slab = leg.start_slab(self.send_slots[-1], self.advisor, now) if start else None
            if slab is None:
                idle += 1
                continue
            idle = 0
            held[self._engine_of(key)] += 1
            self.send_slots.pop()
            self.actions.append(slab)

    def _engine_of(self, key: LegKey) -> str:
        return self.peers[key.peer][0].engine_id

    def announce(self, transfer: ProducerTransfer) -> None:
        """The prefill begins: a consumer that kept its slots for others must not learn of it by heartbeat only."""
        for leg in transfer.legs.values():
            if leg.waiting_for_credit:
                self.send(leg.key.peer, msg.Alive((transfer.standing(leg.key.epoch),)))

    def check_prompt(self, transfer: ProducerTransfer, leg: ProducerLeg) -> None:
        """Refuse a consumer whose prompt is not the one computed here: its KV would yield wrong tokens."""
        offer, register = transfer.offer, leg.register
        if offer is None or not register.wants:
            return
        if (offer.num_prompt_tokens, offer.prompt_digest) != (register.num_prompt_tokens, register.prompt_digest):
            reason = (
                f"prompt differs: producer has {offer.num_prompt_tokens} tokens, consumer {register.num_prompt_tokens}"
            )
            self.refuse(leg.key.peer, leg.key.transfer_id, leg.key.epoch, RefuseCode.PROMPT_DIFFERS, reason)
            self.end_leg(transfer, leg, "refused: " + reason)

    def lose_peer(self, peer: PeerId, reason: str) -> None:
        """The peer's process is gone: nothing it asked for can be delivered."""
        self.peers.pop(peer, None)
        self.heard_at.pop(peer, None)
        self.actions.append(Forget(peer))
        for transfer in list(self.transfers.values()):
            for leg in [leg for leg in transfer.legs.values() if leg.key.peer == peer]:
                self.end_leg(transfer, leg, reason)

    def abort_leg(self, transfer: ProducerTransfer, leg: ProducerLeg, reason: str) -> None:
        """End a leg from this side and say why."""
        self.send(leg.key.peer, msg.Abort(leg.key.transfer_id, leg.key.epoch, reason[:1024]))
        self.end_leg(transfer, leg, reason)

    def end_leg(self, transfer: ProducerTransfer, leg: ProducerLeg, outcome: str) -> None:
        """Stop sending on a leg; it is gone when its last gather and write are."""
        if not leg.over:
            transfer.outcome = transfer.outcome or outcome
            self.send_slots += leg.end()
            self.turn.pop(leg.key, None)
        self.reap(transfer, leg)

    def reap(self, transfer: ProducerTransfer, leg: ProducerLeg) -> None:
        """An ended leg is gone once nothing gathers or writes for it."""
        if not leg.over:
            return
        self.send_slots += leg.settle()
        if not leg.busy and leg.key in transfer.legs:
            del transfer.legs[leg.key]
            transfer.served.add(leg.key.peer)
            self.send(leg.key.peer, msg.Closed(leg.key.transfer_id, leg.key.epoch, leg.digests))
            self.close_if_done(transfer)

    def close_if_done(self, transfer: ProducerTransfer) -> None:
        """Close a transfer that nobody will ask for any more; its blocks go back once the engine finished with them."""
        if self.transfers.get(transfer.transfer_id) is not transfer:
            return
        fenced = transfer.phase in (ProducerPhase.FENCING, ProducerPhase.CLOSED) and not transfer.legs
        nobody = transfer.offer is None and not transfer.legs and not transfer.served
        if not (fenced or nobody or transfer.all_served):
            return
        if transfer.machine.can("consumers_gone"):
            transfer.machine.fire("consumers_gone")
        self.transfers.pop(transfer.transfer_id, None)
        if nobody:
            return
        self.bury(transfer.transfer_id, transfer.outcome or "ended")
        if transfer.finished:
            self.actions.append(Release(transfer.transfer_id, transfer.outcome))

    def bury(self, transfer_id: TransferId, outcome: str) -> None:
        """Remember that this transfer is over, so that nothing late brings it back."""
        self.ended[transfer_id] = outcome
        if len(self.ended) > NUM_TOMBSTONES:
            self.ended.popitem(last=False)

    def send(self, peer: PeerId, message: msg.Message) -> None:
        """Queue a message to a consumer."""
        self.actions.append(Send(peer, message))

    def refuse(self, peer: PeerId, transfer_id: TransferId, epoch: int, code: RefuseCode, reason: str) -> None:
        """Say no, and why."""
        self.send(peer, msg.Refuse(transfer_id, epoch, code, reason[:1024]))
