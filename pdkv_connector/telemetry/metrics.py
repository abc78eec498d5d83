"""The metrics: what they are called, what their labels are, and what they mean. README.md shows this table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "vllm:pdkv_"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histograms' buckets."""


class Kind(StrEnum):
    """What a metric does."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """`labels` come after vLLM's own, `model_name` and `engine`."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str

    @property
    def full_name(self) -> str:
        """As created; a counter's samples have `_total` behind it."""
        return PREFIX + self.name

    @property
    def sample_name(self) -> str:
        """As scraped."""
        return self.full_name + ("_total" if self.kind is Kind.COUNTER else "")


def _metrics() -> tuple[Metric, ...]:
    counter, gauge, histogram = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
    return (
        Metric("sent_slabs", counter, (), "Slabs sent, repeats not counted."),
        Metric("sent_kv_bytes", counter, (), "Bytes of KV sent, before encoding."),
        Metric("sent_wire_bytes", counter, (), "Bytes of KV sent, as encoded."),
        Metric("resent_slabs", counter, (), "Slabs written again because the consumer missed them."),
        Metric("received_slabs", counter, (), "Slabs received whole."),
        Metric("received_kv_bytes", counter, (), "Bytes of KV received, after decoding."),
        Metric("received_wire_bytes", counter, (), "Bytes of KV received, as encoded."),
        Metric("damaged_slabs", counter, (), "Slabs that did not survive the wire and were asked for again."),
        Metric("encode_seconds", counter, (), "Time spent gathering and encoding."),
        Metric("decode_seconds", counter, (), "Time spent decoding and scattering."),
        Metric(
            "transfers", counter, ("side", "outcome"),
            "Transfers that ended, by rank: `delivered`, `not_needed` (D had all of it cached), or why not: "
            "`lease_expired`, `reclaimed`, `cancelled`, `peer_silent`, ...",
        ),
        Metric("transfer_seconds", histogram, (), "D: from asking for KV to having all of it, prefill included."),
        Metric("exposed_seconds", histogram, (), "P: from the end of prefill until D had all of it; 0 if before."),
        Metric(
            "refusals", counter, ("side", "about", "cause"),
            "Refusals of a `handshake` or a `transfer`, sent by P (`producer`) and heard by D (`consumer`).",
        ),
        Metric("recomputes", counter, ("cause",), "D: requests that compute their prompt because KV did not come."),
        Metric("failed_requests", counter, ("cause",), "D: the same where `kv_load_failure_policy` is `fail`."),
        Metric(
            "requests_without_transfer", counter, ("cause",),
            "Requests for which no KV moves: `no_params` (a decode engine computes the prompt itself: is the router "
            "set up for P/D?), `wrong_role`, `bad_params`, `repeated_id`.",
        ),
        Metric("strangers_refused", counter, (), "Connections to the control port that proved no key of ours."),
        Metric("rejected_frames", counter, (), "Control messages and slab headers that were malformed and dropped."),
        Metric("backlog_bytes", gauge, ("rank",), "P: KV that is computed, asked for and not yet sent."),
        Metric("leases", gauge, (), "P: finished requests whose blocks are kept until D has them."),
        Metric("reserved_tokens", gauge, (), "D: tokens whose blocks are allocated and whose KV is still to come."),
        Metric("compression_ratio", gauge, ("direction",), "Bytes of KV per byte on the wire, when KV last moved."),
        Metric(
            "goodput_bytes_per_second", gauge, ("rank", "peer"),
            "Encoded bytes per second towards a peer while writes are in flight; 0 once it is gone.",
        ),
        Metric(
            "codec", gauge, ("rank", "peer", "codec", "cause"),
            "1 for the codec that KV towards a peer takes now, and why; 0 for those it took before.",
        ),
        Metric("info", gauge, ("role", "version"), "1; says what this engine is."),
    )  # fmt: skip


METRICS = {metric.name: metric for metric in _metrics()}


def series(name: str, *labels: str) -> str:
    """One metric with the values of its labels, as one word; values with a comma in them cannot be named like this."""
    return ",".join((name, *labels))


def markdown_table() -> str:
    """The metrics as a Markdown table, as the README shows them between its markers."""
    lines = ["| Metric | Kind | Labels | Meaning |", "| --- | --- | --- | --- |"]
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.sample_name}` | {metric.kind} | {labels} | {metric.meaning} |")
    return "\n".join(lines)
