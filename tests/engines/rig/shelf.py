"""Engines kept alive between tests: a start costs ten times what a test costs."""

from __future__ import annotations

from pathlib import Path

from tests.engines.rig.child_process import Spares
from tests.engines.rig.process import EngineProcess
from tests.engines.rig.spec import EngineSpec


class EngineShelf:
    """At most `capacity` engines (about 3 GB each); the least recently used one is stopped first.

    With `spares` an engine that has ended is replaced in half the time.
    """

    def __init__(self, folder: Path, capacity: int = 4, spares: Spares | None = None) -> None:
        self._spares = spares
        self._folder = folder
        self._capacity = capacity
        self._engines: dict[str, EngineProcess] = {}
        self._num_starts = 0

    def get(self, prefill: EngineSpec, decode: EngineSpec) -> tuple[EngineProcess, EngineProcess]:
        """Both engines, running and ready; missing ones are started side by side. Names identify specs."""
        specs = (prefill, decode)
        for spec in specs:
            engine = self._engines.pop(spec.name, None)
            if engine is not None and engine.process.alive:
                self._engines[spec.name] = engine
        missing = [spec for spec in specs if spec.name not in self._engines]
        self._make_room(len(missing), {spec.name for spec in specs})
        for spec in missing:
            self._engines[spec.name] = self._start(spec)
        return self._engines[prefill.name].wait_ready(), self._engines[decode.name].wait_ready()

    def _start(self, spec: EngineSpec) -> EngineProcess:
        self._num_starts += 1
        return EngineProcess(spec, self._folder / f"{spec.name}-{self._num_starts}.log", self._spares)

    def _make_room(self, num_new: int, wanted: set[str]) -> None:
        for name in [name for name in self._engines if name not in wanted]:
            if len(self._engines) + num_new <= self._capacity:
                return
            self._engines.pop(name).stop()

    def discard(self, *engines: EngineProcess) -> None:
        """Stop engines a test has left in a state others should not inherit."""
        for engine in engines:
            self._engines.pop(engine.spec.name, engine).stop()

    def stop_all(self) -> None:
        """Stop every engine."""
        for engine in self._engines.values():
            engine.stop()
        self._engines.clear()
        if self._spares is not None:
            self._spares.end()
