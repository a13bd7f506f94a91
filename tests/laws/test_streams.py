"""Laws of several compute streams on plans that are as tight as issue order allows: drawn here, each from a seed."""

from __future__ import annotations

import math
from random import Random

import pytest
from replays import run
from strategies import Case, least_budget, leaves_unused
from walks import DDR, HBM, Walk

from simulator.graph_builder import GraphBuilder
from simulator.hardware import Hardware
from simulator.plan import NOWHERE, Plan
from simulator.referee import check_trace

SEEDS = [1, 6, *(pytest.param(block, marks=pytest.mark.slow) for block in range(24) if block not in {1, 6})]
"""Blocks of 250 cases. In 15 of these 24 a plan blocked while a compute stood before all copies, in 1 and 6, too."""


def tight(seed: int) -> Case:
    """Ops on one to three streams, many of which take no room, with hardly more room than issue order needs."""
    draw = Random(seed)
    builder, known = GraphBuilder("tight"), [f"w{i}" for i in range(draw.randint(1, 4))]
    for name in known:
        builder.tensor(name, draw.randint(1, 60), "weight", persistent=True)
    for i in range(draw.randint(3, 9)):
        reads, writes = draw.sample(known, min(len(known), draw.randint(0, 3))), []
        if draw.random() < 0.2:
            writes.append(draw.choice(known))
        if draw.random() < 0.5:
            builder.tensor(f"a{i}", draw.randint(1, 60))
            known.append(f"a{i}")
            writes.append(f"a{i}")
        workspace = draw.choice([0, 0, 0, 20])
        builder.op(f"op{i}", reads, writes, workspace_bytes=workspace, duration_ns=draw.randint(1, 150))
    graph, hardware = builder.build(steps=draw.choice([1, 1, 2])), machine(draw)
    home = [draw.choice([HBM, DDR, DDR]) if t in graph.inputs else NOWHERE for t in range(len(graph.tensors))]
    walk = Walk(draw.choice, graph, hardware, home, least_budget(graph, home) + draw.choice([0, 0, 10, 40]))
    walk.through(draw.choice([1, 2, 2, 3]))
    plan = Plan("tight", hardware.tier_names, tuple(home), walk.steps, graph.steps)
    return Case(graph, hardware, plan, max(walk.peak[HBM], 1), tuple(walk.peak))


def machine(draw: Random) -> Hardware:
    """HBM over an endless DDR, a queue for each link; the way in may be slow, the host seldom far ahead."""
    return Hardware.model_validate(
        {
            "name": "tight",
            "compute_tier": "hbm",
            "compute": {"peak": {"bf16": "1 TFLOP/s"}},
            "host": {"queue_depth": draw.choice([1, 2, 4, 1024])},
            "tiers": {"hbm": {"capacity": "inf", "bandwidth": "1 TB/s"}, "ddr": {"capacity": "inf"}},
            "links": {
                "d2h": {"source": "hbm", "target": "ddr", "bandwidth": "1 GB/s"},
                "h2d": {"source": "ddr", "target": "hbm", "bandwidth": draw.choice(["1 GB/s", "300 MB/s"])},
            },
        }
    )


@pytest.mark.parametrize("block", SEEDS)
def test_a_plan_that_fits_in_issue_order_never_blocks(block):
    """Premises as in `test_room`: endless room below, a queue for each link, nothing copied in leaves unused."""
    for case in map(tight, range(250 * block, 250 * block + 250)):
        assert all(math.isinf(tier.capacity_bytes) for tier in case.hardware.tiers.values())
        trace = run(case)
        assert trace.status == "ok" or leaves_unused(case), (case, trace.blocked)
        check_trace(case.graph, case.hardware, [case.plan], trace, case.budget_bytes)


@pytest.mark.parametrize("block", SEEDS)
def test_the_referee_judges_plans_that_block(block):
    """With less room than issue order needs nearly all block: no law may take that for a breach."""
    blocked = 0
    for seed in range(250 * block, 250 * block + 250):
        case = tight(seed)
        homes = sum(t.size_bytes for t, home in zip(case.graph.tensors, case.plan.home, strict=True) if home == HBM)
        budget = max(homes, case.budget_bytes - Random(seed).randint(1, 30))
        trace = run(case, budget_bytes=budget)
        blocked += trace.status == "blocked"
        check_trace(case.graph, case.hardware, [case.plan], trace, budget)
    assert blocked > 200
