"""Facts of the simulated ranks: tiny heads, so that a slab is a few numbers."""

from __future__ import annotations

from pdkv_connector.layout.topology import kv_heads_of
from pdkv_connector.session.messages import Facts, LayerFact
from tests.simulator.scenario import Scenario

BYTES_PER_TOKEN_HEAD = 2


def _facts(scenario: Scenario, layers: range, tp_rank: int, tp_size: int, pp_rank: int, pp_size: int) -> Facts:
    heads = kv_heads_of(scenario.num_kv_heads, tp_rank, tp_size)
    names = tuple(LayerFact(f"layer{i}", 2, heads, 1, "int8", scenario.windows[i]) for i in layers)
    return Facts("toy", "d", scenario.num_kv_heads, tp_rank, tp_size, pp_rank, pp_size, ("split", "raw"), names)


def producer_facts(scenario: Scenario) -> list[Facts]:
    """One per rank, index `pp_rank * tp_size + tp_rank`; stages share the layers."""
    num_layers, stages = len(scenario.windows), scenario.p_pp
    bounds = [num_layers * stage // stages for stage in range(stages + 1)]
    return [
        _facts(scenario, range(bounds[stage], bounds[stage + 1]), rank, scenario.p_tp, stage, stages)
        for stage in range(stages)
        for rank in range(scenario.p_tp)
    ]


def consumer_facts(scenario: Scenario) -> list[Facts]:
    """One per tensor-parallel rank; every rank holds all layers."""
    layers = range(len(scenario.windows))
    return [_facts(scenario, layers, rank, scenario.d_tp, 0, 1) for rank in range(scenario.d_tp)]
