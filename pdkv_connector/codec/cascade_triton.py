"""The cascade codecs on a GPU: the streams of `codec.coded`, byte for byte, by Triton kernels on the current stream."""

from __future__ import annotations

from typing import Any

import torch

from pdkv_connector.codec.base import Buffer, KVMemory, SlabPart
from pdkv_connector.codec.cascade import FAULTS
from pdkv_connector.codec.cascade_format import BLOCK_ELEMENTS, CHECK_OFFSET, UNIT_BYTES, Frame, check_head, merge
from pdkv_connector.codec.cascade_plan import ALIGNMENT, SlabPlan, plan_slab
from pdkv_connector.codec.coded import sections_of
from pdkv_connector.codec.raw_triton import TritonRawCodec, flat_elements
from pdkv_connector.codec.slab_shape import check_part, slab_bytes
from pdkv_connector.errors import LayoutError, ProtocolError, SlabTooLarge
from pdkv_connector.types import Span
from pdkv_kernels import decode as decoding
from pdkv_kernels.decode import decode
from pdkv_kernels.encode import encode
from pdkv_kernels.pack import pack
from pdkv_kernels.place import place
from pdkv_kernels.segments import LOOKUPS
from pdkv_kernels.table import make_tables

PROGRAMS_PER_SM = 2
"""Four warps each, with registers such that an SM holds one more: what an engine runs meanwhile finds room."""
INTERPRETED_PROGRAMS = 3
WARM_UP_TOKENS = (1, 32)
"""Without and with a base for each channel."""
CLEAN = (0, 0, 1 << 62)
"""Status before a launch: units of the stream, check, first fault."""


class TritonCascadeCodec:
    """Codes with codes of `width` bits. A kernel has at most `max_programs` programs; one caller at a time.

    `encode` and `decode` wait once, at their end, for what they queued: a write needs a length, a slab a verdict.
    """

    def __init__(self, name: str, width: int, max_programs: int | None = None) -> None:
        self.name = name
        self._width = width
        self._max_programs = max_programs
        self._raw = TritonRawCodec()
        self._memory: KVMemory | None = None
        self._elements: list[Any] = []
        self._rooms: dict[str, Any] = {}

    def warm_up(self, memory: KVMemory | None = None) -> None:
        """Compile for every layout in `memory` by moving its first tokens out and back. Raises LayoutError."""
        if memory is None:
            return
        self._raw.warm_up(memory)
        for layer, region in enumerate(memory.regions):
            for num_tokens in WARM_UP_TOKENS:
                tokens = Span(0, min(num_tokens, region.num_blocks * region.block_size))
                plan = self.plan(memory, SlabPart((layer,), (range(region.num_blocks),), tokens, Span(0, 1)))
                most = plan.frame.blocks_at + plan.frame.raw_bytes + UNIT_BYTES * plan.frame.num_blocks
                out = torch.empty(most, dtype=torch.uint8, device=memory.tensors[layer].device)
                self.queue_encode(plan, out)
                self.queue_decode(plan, out[: self.encoded_bytes()])

    def max_encoded_bytes(self, memory: KVMemory, part: SlabPart) -> int:
        return slab_bytes(memory, part)

    def encode(self, memory: KVMemory, part: SlabPart, out: Buffer) -> int:
        """Gather and code `part` into `out`, uint8 on the KV's device, beginning at a multiple of 16 bytes.

        Returns the bytes written. Raises LayoutError, SlabTooLarge.
        """
        total = slab_bytes(memory, part)
        if total:
            plan, limit = self.plan(memory, part), min(out.numel(), total - 1)
            if plan.frame.blocks_at <= limit:
                self.queue_encode(plan, out[:limit])
                if (num_bytes := self.encoded_bytes()) <= limit:
                    return num_bytes
        if out.numel() < total:
            raise SlabTooLarge(f"slab of {total} bytes does not fit {out.numel()} bytes, coded or not")
        return self._raw.encode(memory, part, out)

    def decode(self, memory: KVMemory, part: SlabPart, payload: Buffer) -> None:
        """Decode `payload` into the blocks of `part`, which a bad one spoils. Raises ProtocolError, LayoutError."""
        if payload.numel() == slab_bytes(memory, part):
            self._raw.decode(memory, part, payload)
            return
        plan = self.plan(memory, part)
        if payload.numel() < plan.frame.blocks_at:
            check_head(b"", payload.numel(), plan.frame)
        stream = payload.clone() if payload.data_ptr() % ALIGNMENT else payload
        self.queue_decode(plan, stream)
        self._check(stream, plan.frame)

    def plan(self, memory: KVMemory, part: SlabPart) -> SlabPlan:
        """What the kernels need to know about `part`, uploaded. Raises LayoutError."""
        check_part(memory, part)
        if memory is not self._memory:
            self._elements, self._memory = flat_elements(memory), memory
        frame = Frame(self._width, merge(sections_of(memory, part)))
        return plan_slab(frame, memory, self._elements, part)

    def queue_encode(self, plan: SlabPlan, out: Buffer) -> None:
        """Queue everything; the stream is complete in `out` if `encoded_bytes` says that it fits.

        Allocates nothing after a slab as large, so it can be captured in a graph.
        """
        if out.data_ptr() % ALIGNMENT:
            raise LayoutError(
                f"buffer at address {out.data_ptr():#x} does not begin at a multiple of {ALIGNMENT} bytes"
            )
        frame, slot_bytes = plan.frame, BLOCK_ELEMENTS * max(each.numbers.elem_bytes for each in plan.frame.sections)
        status = self._status(out.device)
        lookups = self._room(
            "lookups", torch.int64, LOOKUPS.value * sum(each.num_segments for each in frame.sections), out.device
        )
        slots = self._room("slots", torch.uint8, slot_bytes * frame.num_blocks, out.device)
        starts = self._room("starts", torch.int64, frame.num_blocks, out.device)
        out[: frame.blocks_at].zero_()
        out[: plan.head.numel()].copy_(plan.head)
        for kv, fields, paging, coding, num_segments, num_blocks in plan.groups:
            make_tables(self._programs(num_segments, out.device), kv, fields, out, lookups, paging, coding)
            programs = self._programs(num_blocks, out.device)
            scratch = self._scratch(programs, out.device)
            encode(programs, kv, fields, out, lookups, slots, slot_bytes, scratch, paging, coding)
        head_units, max_units = frame.blocks_at // UNIT_BYTES, out.numel() // UNIT_BYTES
        programs = self._programs(frame.num_blocks, out.device)
        place(programs, out, frame.directory_at, frame.num_blocks, head_units, starts, status)
        pack(programs, out, slots, slot_bytes, starts, frame.num_blocks, head_units, max_units, status)

    def queue_decode(self, plan: SlabPlan, payload: Buffer) -> None:
        """Queue everything; `payload` is at least as long as a stream's head, and begins at a multiple of 16 bytes."""
        frame, status = plan.frame, self._status(payload.device)
        starts = self._room("starts", torch.int64, frame.num_blocks, payload.device)
        head_units, num_units = frame.blocks_at // UNIT_BYTES, payload.numel() // UNIT_BYTES
        programs = self._programs(frame.num_blocks, payload.device)
        place(programs, payload, frame.directory_at, frame.num_blocks, head_units, starts, status)
        for kv, fields, paging, coding, _, num_blocks in plan.groups:
            programs = self._programs(num_blocks, payload.device)
            scratch = self._scratch(programs, payload.device)
            decode(programs, kv, fields, payload, num_units, head_units, starts, scratch, status, paging, coding)
            head_units = 0

    def encoded_bytes(self) -> int:
        """Length of the stream queued last; waits for it."""
        return int(fetch(self._rooms["status"])[0]) * UNIT_BYTES

    def _check(self, stream: Any, frame: Frame) -> None:
        """Wait for the decoding of `stream`. Raises ProtocolError, naming the fault."""
        num_bytes, status = stream.numel(), fetch(self._rooms["status"])
        head = fetch(stream[: frame.directory_at]).tobytes()
        check_head(head, num_bytes, frame)
        # the check is one of the whole stream only if the blocks fill it
        if status[0] * UNIT_BYTES != num_bytes:
            raise ProtocolError(f"coded slab of {num_bytes} bytes has blocks up to byte {status[0] * UNIT_BYTES}")
        check, written = int(status[1]) & 0xFFFFFFFF, int.from_bytes(head[CHECK_OFFSET : CHECK_OFFSET + 4], "little")
        if check != written:
            raise ProtocolError(f"coded slab of {num_bytes} bytes has check {check:08x}, {written:08x} was written")
        if status[2] != CLEAN[2]:
            block, fault = divmod(int(status[2]), decoding.FAULTS.value)
            raise ProtocolError(f"coded slab has {FAULTS[fault]}, block {block}")

    def _programs(self, work: int, device: Any) -> int:
        if self._max_programs is None:
            sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0
            self._max_programs = PROGRAMS_PER_SM * sms or INTERPRETED_PROGRAMS
        return min(work, self._max_programs)

    def _scratch(self, num_programs: int, device: Any) -> Any:
        return self._room("scratch", torch.uint8, 2 * BLOCK_ELEMENTS * num_programs, device)

    def _status(self, device: Any) -> Any:
        """The counters, set back."""
        if "clean" not in self._rooms:
            self._rooms["clean"] = torch.tensor(CLEAN, dtype=torch.int64).to(device)
        return self._room("status", torch.int64, len(CLEAN), device).copy_(self._rooms["clean"])

    def _room(self, name: str, dtype: Any, size: int, device: Any) -> Any:
        """Memory kept from slab to slab, as large as the largest needed."""
        if name not in self._rooms or self._rooms[name].numel() < size:
            self._rooms[name] = torch.empty(size, dtype=dtype, device=device)
        return self._rooms[name]


def fetch(tensor: Any) -> Any:
    """A small tensor as a numpy array, by way of pinned memory; waits for the current stream."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return host.numpy()
