"""`kv_transfer_params`: the stock keys, and ours under `pdkv`. Wrong ones give a clear reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

MAX_ID_BYTES = 256
MAX_SHOWN_CHARS = 512
MAX_RANKS = 4096
OURS = "pdkv"

Name = Annotated[str, Meta(max_length=256)]
NumRanks = Annotated[int, Meta(ge=0, le=MAX_RANKS)]


@dataclass(frozen=True, slots=True)
class Probe:
    """A request that only asks who this engine is."""


@dataclass(frozen=True, slots=True)
class Produce:
    """Prefill side: keep this request's KV for a consumer. An empty `transfer_id` lets the engine choose one."""

    transfer_id: str


@dataclass(frozen=True, slots=True)
class Consume:
    """Decode side: fetch this request's KV. `endpoints` are in order `pp_rank * tp_size + tp_rank`.

    `digest` asks both engines for digests of the KV; they come back in this side's answer.
    """

    transfer_id: str
    engine_id: str
    endpoints: tuple[str, ...]
    tp_size: int
    digest: bool


@dataclass(frozen=True, slots=True)
class Broken:
    """The parameters ask for a transfer but cannot be used, for `reason`; the engine's failure policy decides."""

    reason: str


class _Ours(msgspec.Struct, forbid_unknown_fields=True):
    transfer_id: str = ""
    endpoints: Annotated[tuple[Name, ...], Meta(max_length=MAX_RANKS)] = ()
    engine_id: Name = ""
    tp_size: NumRanks = 0
    pp_size: int = 1
    probe: bool = False
    digest: bool = False


class _Stock(msgspec.Struct):
    remote_engine_id: Name | None = None
    remote_host: Name | None = None
    remote_port: int | None = None
    tp_size: NumRanks | None = None


Intent = Probe | Produce | Consume | Broken | None


def parse(params: object) -> Intent:
    """What a request's `kv_transfer_params`, as a client sent them, ask for; None when they ask for nothing."""
    if not params:
        return None
    if not isinstance(params, Mapping):
        return Broken(f"kv_transfer_params={_shown(params)} is invalid: expected an object")
    try:
        ours = msgspec.convert(params.get(OURS) or {}, _Ours)
    except msgspec.ValidationError as error:
        return Broken(f"kv_transfer_params[{OURS!r}]={_shown(params.get(OURS))} is invalid: {error}")
    num_bytes = len(ours.transfer_id.encode(errors="replace"))
    if num_bytes > MAX_ID_BYTES:
        return Broken(f"transfer_id of {num_bytes} bytes is longer than {MAX_ID_BYTES}")
    if params.get("do_remote_prefill"):
        return _consume(params, ours)
    if params.get("do_remote_decode"):
        return Produce(ours.transfer_id)
    return Probe() if ours.probe else None


def _consume(params: Mapping[str, Any], ours: _Ours) -> Consume | Broken:
    if not ours.transfer_id:
        return Broken(
            f"kv_transfer_params name no transfer: set {OURS}.transfer_id on both legs, or pass on what the prefill "
            "engine returned"
        )
    try:
        stock = msgspec.convert(params, _Stock, strict=False)
    except msgspec.ValidationError as error:
        return Broken(f"transfer {ours.transfer_id}: kv_transfer_params are invalid: {error}")
    endpoints = ours.endpoints or _stock_endpoint(stock)
    if not endpoints:
        return Broken(
            f"transfer {ours.transfer_id}: kv_transfer_params name no producer: set {OURS}.endpoints, "
            "or remote_host and remote_port"
        )
    tp_size = ours.tp_size or stock.tp_size or 1
    return Consume(ours.transfer_id, stock.remote_engine_id or "", endpoints, tp_size, ours.digest)


def _stock_endpoint(stock: _Stock) -> tuple[str, ...]:
    return (f"{stock.remote_host}:{stock.remote_port}",) if stock.remote_host and stock.remote_port else ()


def _shown(value: object) -> str:
    """What a client sent, short enough for a log line."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."


def announcement(engine_id: str, endpoints: Sequence[str], tp_size: int, pp_size: int) -> dict[str, Any]:
    """How to reach this producer: stock keys name rank 0, ours name every rank."""
    host, _, port = endpoints[0].rpartition(":")
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": engine_id,
        "remote_host": host,
        "remote_port": int(port),
        "tp_size": tp_size,
        OURS: {"engine_id": engine_id, "endpoints": list(endpoints), "tp_size": tp_size, "pp_size": pp_size},
    }


def offer(
    announced: dict[str, Any], transfer_id: str, request_id: str, block_ids: Sequence[Sequence[int]], num_tokens: int
) -> dict[str, Any]:
    """What a prefill response carries to the decode engine, by way of the router."""
    groups = [list(group) for group in block_ids]
    return {
        **announced,
        "remote_request_id": request_id,
        "remote_block_ids": groups[0] if len(groups) == 1 else groups,
        "remote_num_tokens": num_tokens,
        OURS: {**announced[OURS], "transfer_id": transfer_id},
    }
