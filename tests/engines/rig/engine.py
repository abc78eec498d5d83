"""The engine inside the child process: requests in flight, steps taken, counters."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

IDLE_STEP_S = 0.001
MAX_STEPS_KEPT = 20_000


class InProcessEngine:
    """A vLLM engine stepped by its owner; all times are `time.time()`, comparable between processes of one machine."""

    def __init__(self, engine_args: dict[str, Any]) -> None:
        from vllm import LLM

        self._llm = LLM(**engine_args)
        self._engine = self._llm.llm_engine
        self._core = self._engine.engine_core.engine_core
        self._scheduler = self._core.scheduler
        self._internal_ids: dict[str, str] = {}
        self._records: dict[str, dict[str, Any]] = {}
        self._steps: list[dict[str, Any]] = []
        self._scheduled: dict[str, int] = {}
        self._watch_schedule()

    def _watch_schedule(self) -> None:
        """Note the tokens each step computes: the evidence of what was transferred and what was recomputed."""
        schedule = self._scheduler.schedule

        def watched(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._scheduled = dict(output.num_scheduled_tokens)
            return output

        self._scheduler.schedule = watched

    def facts(self) -> dict[str, Any]:
        """Constants of the engine: block counts (the null block included) and KV groups."""
        config = self._scheduler.kv_cache_config
        return {
            "num_blocks": config.num_blocks,
            "num_groups": len(config.kv_cache_groups),
            "block_size": self._engine.vllm_config.cache_config.block_size,
            "pid": os.getpid(),
        }

    def add(self, request_id: str, prompt: list[int], max_tokens: int, params: dict[str, Any] | None) -> None:
        """Queue one greedy request of exactly `max_tokens` tokens."""
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            extra_args=None if params is None else {"kv_transfer_params": params},
        )
        self._records[request_id] = {"request": request_id, "t_added": time.time(), "num_computed": 0}
        self._internal_ids[request_id] = self._engine.add_request(request_id, {"prompt_token_ids": prompt}, sampling)

    def abort(self, request_id: str) -> dict[str, Any] | None:
        """Abort a request; returns its final record, None when it had finished before."""
        if request_id not in self._records:
            return None
        self._engine.abort_request([request_id])
        return self._finish(request_id, [], "abort", None)

    def step(self) -> list[dict[str, Any]]:
        """Run one engine step if there is anything to do; returns records of requests that finished."""
        if not self.has_work():
            return []
        t_start, self._scheduled = time.time(), {}
        outputs = self._engine.step()
        self._note_step(t_start)
        if not self._scheduled:
            time.sleep(IDLE_STEP_S)
        return [record for record in map(self._take, outputs) if record is not None]

    def has_work(self) -> bool:
        """True while the scheduler wants to be stepped: requests, delayed frees, connector work."""
        return bool(self._scheduler.has_requests())

    def _note_step(self, t_start: float) -> None:
        external = {internal: request_id for request_id, internal in self._internal_ids.items()}
        tokens = {external.get(internal, internal): count for internal, count in self._scheduled.items()}
        for request_id, count in tokens.items():
            if request_id in self._records:
                self._records[request_id]["num_computed"] += count
        if tokens and len(self._steps) < MAX_STEPS_KEPT:
            self._steps.append({"t_start": t_start, "t_stop": time.time(), "tokens": tokens})

    def _take(self, output: RequestOutput) -> dict[str, Any] | None:
        record = self._records.get(output.request_id)
        if record is None:
            return None
        completion = output.outputs[0]
        if completion.token_ids:
            record.setdefault("t_first_token", time.time())
        if not output.finished:
            return None
        reason = completion.finish_reason or "unknown"
        return self._finish(output.request_id, list(completion.token_ids), reason, output.kv_transfer_params)

    def _finish(self, request_id: str, tokens: list[int], reason: str, params: Any) -> dict[str, Any]:
        self._internal_ids.pop(request_id, None)
        return {
            **self._records.pop(request_id),
            "token_ids": tokens,
            "finish_reason": reason,
            "kv_transfer_params": params,
            "t_finished": time.time(),
        }

    def counters(self) -> dict[str, Any]:
        """Free blocks of the pool, requests the scheduler still holds (also those finished but not freed), CPU time."""
        pool = self._scheduler.kv_cache_manager.block_pool
        return {
            "free_blocks": pool.get_num_free_blocks(),
            "num_requests": len(self._scheduler.requests),
            "cpu_s": time.process_time(),
        }

    def steps(self) -> list[dict[str, Any]]:
        """Every step that computed something since the last call: start, stop, tokens by request."""
        steps, self._steps = self._steps, []
        return steps

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False when blocks are still in use."""
        return bool(self._engine.reset_prefix_cache())

    def preempt(self) -> bool:
        """Preempt every running request, as memory pressure would."""
        return bool(self._engine.reset_prefix_cache(reset_running_requests=True))

    def shutdown(self) -> None:
        """Stop the engine core and its connector."""
        self._engine.engine_core.shutdown()


def vllm_metrics() -> dict[str, float]:
    """vLLM's own gauges and counters by name, summed over labels; the engine's statistics must be on."""
    from vllm.v1.metrics.reader import get_metrics_snapshot

    sums: dict[str, float] = {}
    for metric in get_metrics_snapshot():
        if hasattr(metric, "value"):
            sums[metric.name] = sums.get(metric.name, 0.0) + float(metric.value)
    return sums
