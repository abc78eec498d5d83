"""Results of bench_kernels as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

MIB = 1 << 20
LINKS_GBIT = (100, 200, 400)


@dataclass(frozen=True)
class Row:
    """One codec at one size; seconds of every repetition. `copy_s` is the device copy of `raw_bytes`.

    `num_programs` is the most programs a kernel had, 0 where the codec chose.
    """

    codec: str
    num_programs: int
    raw_bytes: int
    encoded_bytes: int
    encode_s: tuple[float, ...]
    decode_s: tuple[float, ...]
    copy_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return self.raw_bytes / self.encoded_bytes

    def rate(self, direction: str) -> float:
        """TB/s of KV: `encode`, `decode` or `copy`."""
        return self.raw_bytes / float(median(getattr(self, f"{direction}_s"))) / 1e12

    def fills(self, link_gbit: float) -> float:
        """TB/s of KV that keep a link of `link_gbit` Gb/s full once encoded."""
        return link_gbit / 8e3 * self.ratio


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def rate_table(rows: Iterable[Row]) -> str:
    """Rates by codec and size, or number of programs."""
    head = ["Codec", "Programs", "MiB of KV", "ratio", "encode TB/s", "decode TB/s", "copy TB/s"]
    return _table(
        head,
        [
            [row.codec, str(row.num_programs or "own choice"), f"{row.raw_bytes / MIB:g}", f"{row.ratio:.3f}"]
            + [f"{row.rate(direction):.3f}" for direction in ("encode", "decode", "copy")]
            for row in rows
        ],
    )


def least_programs(rows: Iterable[Row], direction: str, link_gbit: float) -> int | None:
    """The fewest programs measured that keep a link full; None if none of `rows` does."""
    enough = [row.num_programs for row in rows if row.num_programs and row.rate(direction) >= row.fills(link_gbit)]
    return min(enough, default=None)


def share_table(rows: list[Row], num_sms: int) -> str:
    """Programs, and the share of `num_sms` they take at one an SM, that each link needs, from bounded launches."""

    def cell(group: list[Row], direction: str, link: int) -> str:
        programs = least_programs(group, direction, link)
        return "not reached" if programs is None else f"{programs} ({100 * min(1, programs / num_sms):.0f} % of SMs)"

    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.codec, []).append(row)
    return _table(
        ["Codec", "Link Gb/s", "programs to encode", "programs to decode"],
        [
            [codec, str(link), cell(group, "encode", link), cell(group, "decode", link)]
            for codec, group in groups.items()
            for link in LINKS_GBIT
        ],
    )
