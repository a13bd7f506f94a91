"""Experts on demand: what the PAGES says of them, and that a compiled static part is never slower than a runtime."""

from __future__ import annotations

import pytest
from pages import PAGES
from stated import SCENARIOS

import simulator as hosim
from simulator import catalog
from simulator.errors import ScopeError
from simulator.policies import POLICIES
from simulator.run.case import prepare
from simulator.run.grid import sweep
from simulator.run.row import replayed
from simulator.workload.job import JobDocument

pytestmark = pytest.mark.slow

NAME = "moe_experts_on_demand"


@pytest.fixture(scope="module")
def results():
    return hosim.run(NAME)


@pytest.mark.parametrize("evict", ["lru", "hot"])
def test_a_compiled_static_part_is_at_least_as_fast(results, evict):
    one, other = (results[f"{what}, {evict}"].summary for what in ("hybrid", "on demand"))
    assert one["step_ns"] <= other["step_ns"]
    assert one["moved_h2d_bytes"] == other["moved_h2d_bytes"], "both fetch the same"


def test_experts_leave_hbm_but_for_the_cache(results):
    """58 GB at home in DDR; 12.1 GB of them in HBM, or 0.2 GB, which is 79 % and 99.7 % less."""
    experts = sum(t.size_bytes for t in results.case.graph.tensors if t.kind == "expert")
    static_part = results["hybrid, 200 MB"].summary["peak_hbm_bytes"] - 200_000_000
    in_cache = results["hybrid, hot"].summary["peak_hbm_bytes"] - static_part
    assert 1 - in_cache / experts == pytest.approx(0.79, abs=0.005)
    assert 1 - 2e8 / experts == pytest.approx(0.997, abs=0.0005)


OTHERS = [
    "deepseek_v3_nsa_decode",
    "deepseek_v3_nsa_deployments_decode",
    "deepseek_v3_nsa_kv_offload",
    "experts_on_demand",
]
"""The other shipped scenarios whose ops have dynamic reads, but for those held against measurements of runtimes."""


def test_there_are_no_others():
    found = []
    for name in SCENARIOS:
        if catalog.path_of(name, "scenario").parent.name == "measured":
            continue
        work = catalog.resolve(name).workload
        runs = [program.work for program in work.programs.values()] if isinstance(work, JobDocument) else [work]
        if not name.endswith(NAME) and any(w.experts == "each" or _selects(w) for w in runs if w):
            found.append(name)
    assert found == OTHERS


def _selects(workload) -> bool:
    attention = getattr(getattr(workload.model, "attention", None), "sparse", None)
    return attention is not None and workload.kv is not None


@pytest.mark.parametrize("name", OTHERS)
def test_in_every_shipped_scenario_a_compiled_static_part_is_at_least_as_fast(name):
    case = prepare(catalog.resolve(name))
    steps = []
    for policy, options in (("hybrid", {"evict": "lru"}), ("reactive", {"dynamic": "on_demand", "evict": "lru"})):
        try:
            plans = [POLICIES[policy].plan(task.problem, options) for task in case.tasks]
        except ScopeError as refused:
            pytest.skip(str(refused))
        steps.append(replayed(case, policy, plans).summary["step_ns"])
    assert steps[0] <= steps[1]


TEXT = " ".join(PAGES.split())


def test_from_how_many_tokens_on_compute_hides_experts():
    rows = sweep("experts_hidden_by_tokens", cache=False, workers=1).rows
    hidden = [
        min(
            (row["workload.sequence"], row["compute_ns"])
            for row in rows
            if row["policy"] == label and row["slowdown_vs_compute"] < 1.01
        )
        for label in dict.fromkeys(row["policy"] for row in rows)
    ]
    assert [tokens for tokens, _ in hidden] == [24576, 8192, 4096]
    tokens = "about {:,} tokens a step on at 32 GB/s, {:,} at 110 and {:,} at 256 GB/s"
    times = "a layer computes for {}, {} and {} ms"
    assert tokens.format(*(round(tokens, -2) for tokens, _ in hidden)) in TEXT
    assert times.format(*(round(ns / 32 / 1e6) for _, ns in hidden)) in TEXT


def test_from_which_model_on_moving_costs_nothing():
    """All that is saved for backward: what must move grows with the width, what computes with its square."""
    rows = sweep("offload_by_model_size", cache=False, workers=1).rows
    peaks, costs = [], []
    for layers, hidden in dict.fromkeys((row["workload.model.layers"], row["workload.model.hidden"]) for row in rows):
        own = [row for row in rows if (row["workload.model.layers"], row["workload.model.hidden"]) == (layers, hidden)]
        stays, *moved = (row["step_ns"] for row in own)
        peaks.append(own[0]["peak_hbm_bytes"])
        costs.append([f"{ns / stays:.2f}x" for ns in moved])
    slow, fast = ([float(cost.removesuffix("x")) for cost in each] for each in zip(*costs, strict=True))
    assert slow == sorted(slow, reverse=True)
    assert f"from {costs[0][0]} the step of SmolLM-135M to {costs[-1][0]} that of Llama-3-70B at 33.6 GB/s" in TEXT
    assert [peak > 64e9 for peak in peaks] == [False, False, False, True, True, True], "3B is the first without room"
    assert [cost == 1 for cost in fast] == [False, False, False, False, True, True], "nothing from 8B on at 70 GB/s"
