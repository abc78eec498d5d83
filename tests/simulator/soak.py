"""Many schedules on several processes: a line a minute, memory that stays flat, every failure with its replay."""

from __future__ import annotations

import collections
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator

from tests.simulator.simulate import Failure, failures

BATCH = 250
REPORT_S = 60.0
MAX_GROWTH = 0.25
"""A worker that has grown by more than this since its first tenth keeps something of every schedule."""

Outcome = tuple[int, list[Failure], float, int]


def _batch(first_and_count: tuple[int, int]) -> Outcome:
    first, count = first_and_count
    begun = time.process_time()
    found = failures(range(first, first + count))
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return count, found, time.process_time() - begun, peak_kib


def _outcomes(first: int, count: int, jobs: int) -> Iterator[Outcome]:
    batches = [(start, min(BATCH, first + count - start)) for start in range(first, first + count, BATCH)]
    if jobs == 1:
        yield from map(_batch, batches)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_batch, batches)


class Progress:
    """What has been run so far."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._begun = self._told = time.monotonic()
        self.done = 0
        self.cpu_s = 0.0
        self.failures: list[Failure] = []
        self.peak_mib = 0
        self.early_mib = 0

    def add(self, outcome: Outcome) -> None:
        """Count one batch; failures are printed as they come, progress once a minute."""
        done, found, cpu_s, peak_kib = outcome
        self.done += done
        self.cpu_s += cpu_s
        self.failures += found
        self.peak_mib = max(self.peak_mib, peak_kib // 1024)
        if self.done <= max(self._count // 10, BATCH):
            self.early_mib = self.peak_mib
        for failure in found:
            print(failure, flush=True)
        if time.monotonic() - self._told > REPORT_S:
            self._told = time.monotonic()
            print(self, flush=True)

    def __str__(self) -> str:
        took_s, each_ms = time.monotonic() - self._begun, 1e3 * self.cpu_s / max(1, self.done)
        what = f"{self.done} of {self._count} schedules, {len(self.failures)} failures"
        return f"{what}, {took_s:.0f} s, {each_ms:.1f} ms of CPU each, {self.peak_mib} MiB a process"

    @property
    def grew(self) -> bool:
        """True when memory is not flat."""
        return self.peak_mib > (1 + MAX_GROWTH) * self.early_mib


def run(first: int, count: int, jobs: int) -> int:
    """Play seeds `first` and on; returns the exit status."""
    progress = Progress(count)
    for outcome in _outcomes(first, count, jobs):
        progress.add(outcome)
    print(progress)
    if progress.failures:
        print(dict(collections.Counter(failure.rule for failure in progress.failures)), file=sys.stderr)
    if progress.grew:
        print(f"memory grew from {progress.early_mib} to {progress.peak_mib} MiB a process", file=sys.stderr)
    return int(bool(progress.failures) or progress.grew)
