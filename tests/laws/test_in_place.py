"""Laws of reads in place: the referee accepts what the engine does with them, and no plan beats the bounds."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from bounding import limits_alone
from examples import examples, some
from hypothesis import event, given, settings
from oracle_cases import Run, loading
from policy_problems import problem, replay

from simulator import engine, metrics
from simulator.cost import durations_ns
from simulator.errors import CapacityError, ScopeError
from simulator.graph import Job
from simulator.graph_builder import GraphBuilder
from simulator.hardware import Hardware
from simulator.metrics import summarise
from simulator.plan import FREE, Plan
from simulator.policies import POLICIES, Problem, Replay
from simulator.policies.in_place import in_place
from simulator.referee import check_plan, check_trace

HBM, DDR = 0, 1


@settings(max_examples=examples(200))
@given(loading())
def test_the_referee_accepts_any_run_and_no_plan_beats_the_bounds(run: Run) -> None:
    """Nothing is said to stay at home in HBM, so that drawn plans may move it."""
    trace = engine.run(run.programs, run.hardware, budget_bytes=run.budget_bytes)
    graph, plans = run.programs[0].graph, [program.plan for program in run.programs]
    for plan in plans:
        check_plan(graph, run.hardware, plan)
    check_trace(graph, run.hardware, plans, trace, run.budget_bytes)
    event(f"{trace.status}, {min(len(trace.loads), 3)} loads")
    if trace.status != "ok" or len(plans) > 1 or metrics.repeats(Job.of(graph), trace):
        return
    homes = [FREE if home == HBM else home for home in plans[0].home]
    limits = limits_alone(graph, run.hardware, durations_ns(graph, run.hardware), homes)
    assert summarise(graph, run.hardware, trace)["step_ns"] >= limits.step(run.budget_bytes).ns


def machine(draw: Random) -> Hardware:
    """HBM over DDR, from which kernels load faster or slower than copies come."""
    link = {"bandwidth": draw.choice(["1 GB/s", "400 MB/s", "50 MB/s"]), "latency": draw.choice(["0 ns", "4 ns"])}
    loads = {"loads": draw.choice(["1 GB/s", "300 MB/s", "50 MB/s"])}
    return Hardware.model_validate(
        {
            "name": "loading",
            "compute_tier": "hbm",
            "compute": {"peak": {"bf16": "1 GFLOP/s"}, "launch": draw.choice(["0 ns", "2 ns"])},
            "host": {"queue_depth": draw.choice([1, 4, 1024])},
            "tiers": {
                "hbm": {"capacity": "inf", "bandwidth": "1 GB/s", "shared": draw.random() < 0.3},
                "ddr": {"capacity": "inf", **draw.choice([{}, {"bandwidth": "500 MB/s"}])},
            },
            "links": {
                "d2h": {"source": "hbm", "target": "ddr", **link},
                "h2d": {"source": "ddr", "target": "hbm", **link, **loads, "channels": draw.choice([1, 2])},
            },
        }
    )


@cache
def step_of(seed: int) -> Problem:
    """A step with weights in HBM, in DDR or anywhere, some of which may be read in place, and little room."""
    draw, builder = Random(seed), GraphBuilder("step")
    weights = [f"w{i}" for i in range(draw.randint(2, 5))]
    for name in weights:
        builder.tensor(name, draw.randint(5, 60), "weight", persistent=True)
    known, ops = [*weights], draw.randint(4, 9)
    for i in range(ops):
        reads, writes = draw.sample(known, min(len(known), draw.randint(1, 3))), []
        if draw.random() < 0.6:
            builder.tensor(f"a{i}", draw.randint(5, 60))
            known.append(f"a{i}")
            writes.append(f"a{i}")
        if draw.random() < 0.1:
            writes.append(draw.choice(weights))
        fields = {"duration_ns": draw.randint(1, 100), "phase": "forward" if i < ops // 2 else "backward"}
        if draw.random() < 0.5:
            fields = {"phase": fields["phase"], "read_bytes": draw.randint(0, 80), "flops": draw.randint(0, 60)}
        builder.op(f"op{i}", reads, writes, **fields, workspace_bytes=draw.choice([0, 0, 10]))
    graph = builder.build([], steps=draw.choice([1, 2, 3]))
    marked = frozenset(t for t in graph.may_stay_away if draw.random() < 0.8)
    size = [tensor.size_bytes for tensor in graph.tensors]
    homes = {tensor.name: draw.choice([HBM, DDR, DDR, FREE]) for tensor in graph.tensors if tensor.persistent}
    pinned = sum(tensor.size_bytes for tensor in graph.tensors if homes.get(tensor.name) == HBM)
    working = max(op.workspace_bytes + sum(size[t] for t in {*op.reads, *op.writes}) for op in graph.ops)
    room = max(working, pinned) + draw.choice([0, 10, 30, 60, 200])
    return problem(replace(graph, in_place=marked), room, homes, hardware=machine(draw))


@cache
def least_ns(seed: int) -> int:
    """No plan of such a step is faster; the same for all policies and choices."""
    case = step_of(seed)
    limits = limits_alone(case.graph, case.hardware, case.durations_ns, case.known_homes)
    return limits.step(case.budget_bytes).ns


@cache
def ran_of(policy: str, choice: str, seed: int) -> tuple[Plan, Replay] | None:
    """A plan of such a step and its replay; None if nothing fits."""
    case = step_of(seed)
    with suppress(CapacityError, ScopeError):
        plan = in_place(case, choice, POLICIES[policy].plan)
        return plan, replay(case, plan)
    return None


@pytest.mark.parametrize("seeds", [(0, 1, 2, 3, 20, 30), pytest.param(range(4, 10), marks=pytest.mark.slow)])
@pytest.mark.parametrize("choice", ["never", "always", "choose"])
@pytest.mark.parametrize("policy", some(["static", "resident", "reactive", "lookahead", "recompute"], 2))
def test_every_policy_leaves_in_place_what_it_may(policy, choice, seeds, quick_plans):
    """Its plan obeys all laws, never blocks itself, and is no faster than the bound; `choose` is never the slowest.

    Step 20 is shorter than a bound by which the last op loads nothing, and 30 than one by which nothing stays in HBM.
    """
    planned, loaded = 0, 0
    for seed in seeds:
        case, found = step_of(seed), ran_of(policy, choice, seed)
        if found is None:
            continue
        plan, ran = found
        if plan.fixed is not None:
            check_plan(case.graph, case.hardware, plan)
        assert ran.status == "ok", (seed, ran.trace.blocked)
        check_trace(case.graph, case.hardware, [plan], ran.trace, case.budget_bytes)
        assert policy == "recompute" or ran.step_ns >= least_ns(seed), seed
        planned, loaded = planned + 1, loaded + len(ran.trace.loads)
        if choice == "choose":
            others = filter(None, (ran_of(policy, other, seed) for other in ("never", "always")))
            assert ran.step_ns <= min(other.step_ns for _, other in others), seed
    assert planned
    assert (loaded > 0) == (choice != "never")
