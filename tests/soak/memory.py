"""How fast a process grows: a straight line through what it held over its life. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MB = 1e6
WARM_UP_SHARE, WARM_UP_S = 0.25, 120.0


@dataclass(frozen=True)
class Sample:
    """Resident memory of one process at unix time `t`."""

    t: float
    rss_bytes: int


@dataclass(frozen=True)
class Growth:
    """Of one process after its warm-up; the slope is None where there are too few samples for one."""

    process: str
    minutes: float
    first_mb: float
    last_mb: float
    slope_mb_per_min: float | None

    def as_row(self) -> dict[str, Any]:
        """Rounded to what can be told apart."""
        return {key: round(value, 2) if isinstance(value, float) else value for key, value in asdict(self).items()}


def growth(process: str, samples: Sequence[Sample]) -> Growth:
    """The first quarter of a life, at most two minutes, is warm-up: KV pools are touched for the first time then."""
    begun, ended = samples[0].t, samples[-1].t
    warm_at = begun + min(WARM_UP_S, WARM_UP_SHARE * (ended - begun))
    warm = [sample for sample in samples if sample.t >= warm_at]
    minutes = (warm[-1].t - warm[0].t) / 60
    return Growth(process, minutes, warm[0].rss_bytes / MB, warm[-1].rss_bytes / MB, slope_mb_per_min(warm))


def slope_mb_per_min(samples: Sequence[Sample]) -> float | None:
    """Least squares over all samples; None for fewer than three."""
    if len(samples) < 3:
        return None
    mean_t = sum(sample.t for sample in samples) / len(samples)
    mean_rss = sum(sample.rss_bytes for sample in samples) / len(samples)
    spread = sum((sample.t - mean_t) ** 2 for sample in samples)
    together = sum((sample.t - mean_t) * (sample.rss_bytes - mean_rss) for sample in samples)
    return 60 * together / spread / MB
