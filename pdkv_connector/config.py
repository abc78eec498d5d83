"""One frozen configuration, from the engine's `kv_connector_extra_config` and from `PDKV_*` variables.

The field table below is the only list of settings: parsing, bounds, error messages and the README's table are read
from it. A setting given in the mapping wins over the environment, which wins over the default.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from pdkv_connector.errors import ConfigError

ENV_PREFIX = "PDKV_"
WILDCARDS = ("0.0.0.0", "::", "*")  # noqa: S104 - refused, not bound
RESERVED_ENV_PREFIX = "PDKV_TEST_"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every setting. Build it with `from_sources`, which validates; sizes are bytes, durations seconds."""

    control_host: Annotated[
        str, Meta(min_length=1, max_length=255, description="Address the control channel binds and announces.")
    ] = "127.0.0.1"
    control_port: Annotated[
        int,
        Meta(ge=0, le=65535, description="Control port of the first rank, the others' follow; 0 lets the OS choose."),
    ] = 0
    keys_dir: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Folder of this cluster's control channel keys, made by `pdkv keys create`; empty: no keys.",
        ),
    ] = ""
    transport: Annotated[Literal["nixl", "loopback"], Meta(description="What moves the bytes.")] = "nixl"
    nixl_backend: Annotated[str, Meta(min_length=1, max_length=64, description="NIXL plugin to use.")] = "UCX"
    nixl_params: Annotated[
        dict[str, str], Meta(description="Parameters of the NIXL plugin, passed on as they are.")
    ] = {}
    codec: Annotated[
        Literal["raw", "pack4", "split", "auto"],
        Meta(description="Encoding of KV sent from here; `auto`: by peer, whichever carries most KV over its link."),
    ] = "auto"
    codec_threads: Annotated[int, Meta(ge=1, le=64, description="Threads that encode and decode KV.")] = 1
    model_id: Annotated[
        str,
        Meta(max_length=256, description="Model name both engines must share; empty: last part of the model's path."),
    ] = ""
    slot_bytes: Annotated[
        int, Meta(ge=4 * KIB, le=GIB, description="Size of a ring slot: the largest slab on the wire.")
    ] = 2 * MIB
    ring_bytes: Annotated[
        int, Meta(ge=8 * KIB, le=256 * GIB, description="Size of the receive ring, and again of the send ring.")
    ] = 64 * MIB
    window_slots: Annotated[
        int, Meta(ge=1, le=4096, description="Most receive slots one transfer holds at a time.")
    ] = 8
    integrity: Annotated[bool, Meta(description="Checksum every slab on its way.")] = True
    lease_s: Annotated[
        float, Meta(ge=1, le=3600, description="How long a producer keeps KV without a word from the consumer.")
    ] = 30.0
    reclaim_s: Annotated[
        float, Meta(ge=0.1, le=3600, description="The same while requests wait for blocks: such KV is given up early.")
    ] = 5.0
    heartbeat_s: Annotated[float, Meta(ge=0.01, le=600, description="Interval of lease renewals.")] = 1.0
    retry_s: Annotated[float, Meta(ge=0.01, le=600, description="Interval of repeated control messages.")] = 0.5
    resend_s: Annotated[
        float, Meta(ge=0.01, le=600, description="A written slab unacknowledged for this long is written again.")
    ] = 2.0
    peer_timeout_s: Annotated[
        float, Meta(ge=0.1, le=3600, description="A peer silent for this long counts as lost.")
    ] = 10.0
    producer_timeout_s: Annotated[
        float, Meta(ge=0.1, le=86400, description="Longest wait for the producer to learn of a transfer.")
    ] = 60.0
    stall_timeout_s: Annotated[
        float, Meta(ge=0.1, le=86400, description="Longest time a transfer lives without progress.")
    ] = 300.0
    poll_busy_s: Annotated[float, Meta(ge=0, le=1, description="Pause between polls while a transfer is active.")] = (
        0.001
    )
    poll_idle_s: Annotated[float, Meta(ge=0.0001, le=10, description="Pause between polls while there is none.")] = 0.05
    timeline_path: Annotated[
        str, Meta(max_length=4096, description="File to append one JSON line per transfer event to; empty: none.")
    ] = ""

    def with_ports_from(self, num_ranks: int) -> Config:
        """The same behind `num_ranks` other ranks of this host, each of which has a port."""
        port = self.control_port and self.control_port + num_ranks
        return msgspec.structs.replace(self, control_port=port)

    @property
    def num_slots(self) -> int:
        """Slots in each ring."""
        return self.ring_bytes // self.slot_bytes

    @property
    def control_is_local(self) -> bool:
        """True when the control address can be reached from this machine only."""
        try:
            return ipaddress.ip_address(self.control_host).is_loopback
        except ValueError:
            return self.control_host == "localhost"

    @classmethod
    def from_sources(cls, extra: Mapping[str, object], environ: Mapping[str, str]) -> Config:
        """Validated settings: `extra` over `environ` over defaults. Raises ConfigError, naming key, value and fix."""
        values = _from_environ(environ) | _from_mapping(extra)
        config = cls(**values)
        _check_combinations(config)
        return config


class Row(NamedTuple):
    """One setting, as documentation shows it."""

    key: str
    env: str
    default: str
    meaning: str


class _Field(NamedTuple):
    key: str
    env: str
    type: Any
    default: Any
    meaning: str


def _fields() -> dict[str, _Field]:
    hints = get_type_hints(Config, include_extras=True)
    table = {}
    for info in msgspec.structs.fields(Config):
        default = info.default_factory() if info.default is msgspec.NODEFAULT else info.default
        meaning = next(meta.description for meta in get_args(hints[info.name]) if isinstance(meta, Meta))
        table[info.name] = _Field(info.name, ENV_PREFIX + info.name.upper(), hints[info.name], default, meaning or "")
    return table


FIELDS = _fields()
_BY_ENV = {field.env: field for field in FIELDS.values()}


def _nearest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def _expected(field: _Field) -> str:
    """What a field accepts, in words: `int from 0 to 65535`."""
    kind = get_args(field.type)[0]
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(kind))
    bounds = next(meta for meta in get_args(field.type) if isinstance(meta, Meta))
    if bounds.ge is not None:
        return f"{kind.__name__} from {bounds.ge} to {bounds.le}"
    if bounds.min_length or bounds.max_length:
        return f"text of {bounds.min_length or 0} to {bounds.max_length} characters"
    return "an object of text to text" if get_origin(kind) is dict else kind.__name__


def _convert(field: _Field, source: str, value: object, *, strict: bool) -> Any:
    try:
        return msgspec.convert(value, field.type, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{source}={value!r} is invalid: expected {_expected(field)}, default {field.default!r} ({error})"
        ) from None


def _from_mapping(extra: Mapping[str, object]) -> dict[str, Any]:
    for key in extra:
        if key not in FIELDS:
            raise ConfigError(f"unknown setting {key!r}={extra[key]!r}: {_nearest(str(key), FIELDS)}")
    return {key: _convert(FIELDS[key], key, value, strict=True) for key, value in extra.items()}


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or name.startswith(RESERVED_ENV_PREFIX):
            continue
        if name not in _BY_ENV:
            raise ConfigError(f"unknown environment variable {name!r}={text!r}: {_nearest(name, _BY_ENV)}")
        field = _BY_ENV[name]
        values[field.key] = _convert(field, name, _parse(field, text), strict=False)
    return values


def _parse(field: _Field, text: str) -> object:
    """Mappings are written as JSON in the environment; everything else is plain text that `convert` reads."""
    if not isinstance(field.default, dict):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{field.env}={text!r} is invalid: expected a JSON object; {error}") from None


def _check_combinations(config: Config) -> None:
    if config.control_host in WILDCARDS:
        raise ConfigError(
            f"control_host={config.control_host!r} is announced to other engines as it stands, and none can dial it: "
            "set the address of the interface they reach this machine by"
        )
    if config.ring_bytes < 2 * config.slot_bytes:
        raise ConfigError(
            f"ring_bytes={config.ring_bytes} holds fewer than 2 slots of slot_bytes={config.slot_bytes}: "
            f"raise ring_bytes to at least {2 * config.slot_bytes} or lower slot_bytes"
        )
    if config.window_slots > config.num_slots:
        raise ConfigError(
            f"window_slots={config.window_slots} exceeds the {config.num_slots} slots that "
            f"ring_bytes={config.ring_bytes} and slot_bytes={config.slot_bytes} give: "
            f"lower window_slots to at most {config.num_slots}"
        )
    if config.heartbeat_s >= config.lease_s / 2:
        raise ConfigError(
            f"heartbeat_s={config.heartbeat_s} must be below half of lease_s={config.lease_s}, "
            "or one lost heartbeat ends a lease: lower heartbeat_s or raise lease_s"
        )


def _show(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= MIB and value % MIB == 0:
        return f"{value} ({value // MIB} MiB)"
    return msgspec.json.encode(value).decode()


def describe() -> list[Row]:
    """All settings in order; defaults are shown as JSON."""
    return [Row(field.key, field.env, _show(field.default), field.meaning) for field in FIELDS.values()]


def markdown_table() -> str:
    """The settings as a Markdown table, as the README shows them between its markers."""
    head = ["| Key | Variable | Default | Meaning |", "| --- | --- | --- | --- |"]
    return "\n".join(head + [f"| `{r.key}` | `{r.env}` | `{r.default}` | {r.meaning} |" for r in describe()])
