"""What the connector costs an engine per step: idle, and with many transfers waiting. Both halves, in a real engine.

    python -m benchmarks.bench_step [--waiting 256] [--steps 2000]

One vLLM engine with role kv_both registers its waiting transfers with itself, under ids that no prefill request ever
names, so they wait for as long as the measurement takes while the transfer thread renews them. A step is every hook
that vLLM calls when no forward pass runs, in vLLM's order.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks import machine
from pdkv_connector.cli.models import ensure_model
from tests.engines.rig.engine import InProcessEngine

RESULTS = Path(__file__).resolve().parent / "results" / "step.jsonl"
BUDGET_IDLE_US, BUDGET_WAITING_US = 50.0, 500.0
PROMPT_TOKENS = 40
SETTLE_S = 5.0


def start_engine() -> InProcessEngine:
    """A small engine whose connector is ours."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
    transfer = {
        "kv_connector": "PDKVConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"producer_timeout_s": 86400.0, "ring_bytes": 64 << 20},
    }
    model = str(ensure_model("smollm2"))
    return InProcessEngine(
        {"model": model, "dtype": "bfloat16", "enforce_eager": True, "kv_transfer_config": transfer,
         "max_model_len": 512, "max_num_seqs": 8, "max_num_batched_tokens": 512}
    )  # fmt: skip


def own_params(engine: InProcessEngine) -> dict[str, Any]:
    """How to reach this engine's own producer side."""
    engine.add("probe", [1, 2, 3], 1, {"pdkv": {"probe": True}})
    while True:
        for record in engine.step():
            if record["kv_transfer_params"]:
                params: dict[str, Any] = record["kv_transfer_params"]
                return params


def add_waiting(engine: InProcessEngine, num_waiting: int) -> None:
    """Requests that wait for KV nobody will ever compute."""
    params = own_params(engine)
    for index in range(num_waiting):
        ours = {**params["pdkv"], "transfer_id": f"never-{index}"}
        prompt = [(index * 31 + token) % 30000 + 10 for token in range(PROMPT_TOKENS)]
        engine.add(f"waiting-{index}", prompt, 1, {**params, "pdkv": ours})
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until:
        engine.step()


def measure(num_steps: int) -> dict[str, float]:
    """Median and 99th percentile microseconds of a step's hooks, by half."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput

    worker, scheduler = get_kv_transfer_group(), _SCHEDULER[0].connector
    empty, output = SchedulerOutput.make_empty(), KVConnectorOutput()
    samples: dict[str, list[float]] = {"scheduler": [], "worker": []}
    for _ in range(num_steps):
        t0 = time.perf_counter()
        plan = scheduler.build_connector_meta(empty)
        scheduler.has_pending_push_work()
        scheduler.update_connector_output(output)
        t1 = time.perf_counter()
        worker.handle_preemptions(plan)
        worker.bind_connector_metadata(plan)
        worker.start_load_kv(None)
        worker.wait_for_save()
        worker.get_transfer_results(set())
        worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        t2 = time.perf_counter()
        samples["scheduler"].append((t1 - t0) * 1e6)
        samples["worker"].append((t2 - t1) * 1e6)
        time.sleep(0.001)
    return {
        f"{half}_{name}_us": round(pick(values), 1)
        for half, values in samples.items()
        for name, pick in (("median", statistics.median), ("p99", lambda v: statistics.quantiles(v, n=100)[98]))
    }


_SCHEDULER: list[Any] = []


def main() -> None:
    """Measure idle, then with transfers waiting; print, and append one line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waiting", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    engine = start_engine()
    _SCHEDULER.append(engine._scheduler)
    rows = {"0": measure(args.steps)}
    add_waiting(engine, args.waiting)
    waiting = sum("never-" in name for name in _SCHEDULER[0].connector._scheduler._consumer._in_flight)
    rows[str(waiting)] = measure(args.steps)
    print(f"| transfers waiting | scheduler half us | worker half us | sum | budget |\n{'| ---: ' * 5}|")
    for (count, row), budget in zip(rows.items(), (BUDGET_IDLE_US, BUDGET_WAITING_US), strict=True):
        total = row["scheduler_median_us"] + row["worker_median_us"]
        print(f"| {count} | {row['scheduler_median_us']} | {row['worker_median_us']} | {total:.1f} | {budget:g} |")
    line = {"bench": "step", "machine": machine.describe(), "rows": rows}
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    engine.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
