"""What `static` is wanted to reach, on graphs that this repository can build."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
from bounding import bound
from policy_problems import DDR, machine, problem, replay
from stated import SCENARIOS

import simulator as hosim
from simulator import catalog
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.lifetime import live_bytes
from simulator.policies import POLICIES
from simulator.policies.static import Options
from simulator.run.case import prepare


def decode(layers: int = 32, steps: int = 4) -> Graph:
    """One token a step through a decoder whose weights stream in from DDR; the KV cache stays."""
    builder = GraphBuilder("decode")
    builder.tensor("x", 10)
    for i in range(layers):
        for part, size in (("qkv", 300), ("o", 200), ("up", 700), ("down", 700)):
            builder.tensor(f"L{i}/{part}", size, "weight", persistent=True)
        builder.tensor(f"L{i}/kv", 200, "kv_cache", persistent=True)
    for i in range(layers):
        builder.op(f"L{i}/attn.qkv", ["x", f"L{i}/qkv"] if i else [f"L{i}/qkv"], ["x"], duration_ns=300)
        builder.op(f"L{i}/attn", ["x", f"L{i}/kv"], ["x", f"L{i}/kv"], duration_ns=250)
        builder.op(f"L{i}/attn.o", ["x", f"L{i}/o"], ["x"], duration_ns=200)
        builder.op(f"L{i}/mlp.up", ["x", f"L{i}/up"], ["x"], duration_ns=650)
        builder.op(f"L{i}/mlp.down", ["x", f"L{i}/down"], ["x"], duration_ns=650)
    return builder.build(steps=steps)


@pytest.mark.parametrize("rate", ["1 GB/s", "1.5 GB/s", "4 GB/s"])
def test_a_weight_streamed_decode_is_within_three_per_cent_where_compute_is_the_bound(rate):
    graph = decode()
    home = {t.name: DDR for t in graph.tensors if t.kind == "weight"}
    p = problem(graph, 32 * 200 + 10 + 4 * 700, home, machine(h2d={"bandwidth": rate}, d2h={"bandwidth": rate}))
    limit = bound(graph, p.hardware, p.durations_ns, p.homes, p.budget_bytes)
    done = replay(p, POLICIES["static"].plan(p))
    if limit.kind == "compute":
        assert done.step_ns <= 1.03 * limit.ns
    assert done.step_ns <= 1.05 * limit.ns
    assert done.peak_bytes["hbm"] <= p.budget_bytes


def test_one_set_of_weights_serves_all_shipped_scenarios():
    for name, scenario in SCENARIOS.items():
        for choice in scenario.policies:
            if choice.policy == "static":
                chosen = Options.model_validate(choice.options)
                asked = {"recompute": False, "move": Options().move}  # what a user wants of a plan tunes nothing
                assert chosen.model_copy(update=asked) == Options(), name


@cache
def ran(name):
    """A scenario that several tests read."""
    return hosim.run(name)


@pytest.mark.parametrize(
    "name",
    [
        "tiny_train_t4",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("tiny_train_910c", "llama3_8b_train_h100")),
    ],
)
def test_static_is_never_behind_another_row_and_least_of_all_with_recompute(name):
    """A row that runs ops again is compared with the one that may, too."""
    results = ran(name)
    steps = {label: row.summary["step_ns"] for label, row in results.items() if row.status == "ok"}
    assert min(steps.values()) == steps["static with recompute"]
    once = {label: ns for label, ns in steps.items() if not results[label].summary["recompute_ns"]}
    assert min(once.values()) == min(steps["static"], once.get("static with recompute", steps["static"]))


def test_what_a_slow_link_exposes_is_named():
    results = ran("tiny_train_t4")
    assert results["static"].summary["stall_ns"] > 0
    said = " ".join(results.sentences)
    assert "waiting for room in hbm" in said
    assert "waiting for transfers over d2h" in said


@pytest.mark.slow
def test_a_ddr_that_is_too_small_costs_no_more_than_the_ssd_behind_it_must():
    """What neither tier has room for at the worst op is read back from the SSD after that op: no plan is faster."""
    case = prepare(catalog.resolve("tiny_train_t4"), is_changed=False)
    live = live_bytes(case.graph)
    worst = int(live.argmax())
    rate = case.problem.hardware.links["read"].bandwidth_bytes_per_s
    steps = []
    for megabytes in (12, 20, 40, 60, 70, 75, 80, 81, 90):
        row = hosim.run("tiny_train_t4", set={"tiers.ddr.capacity": f"{megabytes} MB"}, policies=["static"])["static"]
        short = max(0, int(live[worst]) - case.problem.budget_bytes - megabytes * 10**6)
        least_ns = case.problem.clock[worst + 1] + short * 10**9 // rate if short else 0
        steps.append(row.summary["step_ns"])
        assert steps[-1] <= 1.25 * max(least_ns, row.summary["bound_ns"])
    assert all(more <= 1.004 * less for less, more in pairwise(steps))
    assert steps[-3] <= 1.01 * steps[-1]
