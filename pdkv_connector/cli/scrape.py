"""One look at an engine's `/metrics`, over HTTP."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from pdkv_connector.errors import PdkvError
from pdkv_connector.telemetry.metrics import METRICS

LIMIT_S = 3.0
Labels = dict[str, str]


@dataclass(frozen=True)
class Scrape:
    """What an engine showed at `at` (monotonic seconds); `fault` says why it showed nothing."""

    at: float
    fault: str = ""
    samples: dict[str, list[tuple[Labels, float]]] = field(default_factory=dict)

    def total(self, name: str, **wanted: str) -> float | None:
        """Sum of a metric's samples with these labels; None where there is none."""
        found = [value for labels, value in self.samples.get(name, ()) if wanted.items() <= labels.items()]
        return sum(found) if found else None

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Samples other than 0, summed up by the values of some labels."""
        sums: dict[tuple[str, ...], float] = defaultdict(float)
        for sample, value in self.samples.get(name, ()):
            sums[tuple(sample.get(label, "") for label in labels)] += value
        return {values: total for values, total in sums.items() if total}


def base_url(text: str) -> str:
    """A server's URL without path. Raises PdkvError, with the fix, when it is none."""
    parts = urlsplit(text)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.path.rstrip("/") not in ("", "/metrics") or parts.query:
        raise PdkvError(f"{text!r} is not the URL of a server: write it like http://HOST:8100")
    return f"{parts.scheme}://{parts.netloc}"


async def scrape(http: aiohttp.ClientSession, url: str) -> Scrape:
    """Look once. Whatever goes wrong is the result's `fault`."""
    try:
        async with http.get(f"{url}/metrics", timeout=aiohttp.ClientTimeout(LIMIT_S)) as response:
            text = await response.text()
            if response.status != 200:
                return Scrape(time.monotonic(), f"answers {response.status} to GET /metrics: is it a vLLM server?")
    except TimeoutError:
        return Scrape(time.monotonic(), f"no answer within {LIMIT_S:g} s")
    except aiohttp.ClientConnectorError as error:
        return Scrape(time.monotonic(), f"cannot be reached: {os.strerror(error.errno or 0) or error}")
    except (aiohttp.ClientError, UnicodeDecodeError) as error:
        return Scrape(time.monotonic(), f"cannot be asked: {str(error) or type(error).__name__}")
    return parse(text, time.monotonic())


def parse(text: str, at: float) -> Scrape:
    """Read the text format of Prometheus."""
    samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name].append((sample.labels, sample.value))
    except (ValueError, KeyError, IndexError) as error:
        return Scrape(at, f"GET /metrics is not in the format of Prometheus: {str(error)[:100]!r}")
    if METRICS["info"].sample_name not in samples:
        return Scrape(at, "shows no metrics of PDKVConnector: is it set in --kv-transfer-config?")
    return Scrape(at, "", dict(samples))
