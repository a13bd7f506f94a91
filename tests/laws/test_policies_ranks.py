"""Every policy, on random graphs with collectives: what it plans for one rank runs to the end on two, in line or beside
the computes, and what is counted of each rank adds up."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from examples import examples
from hypothesis import event, given, settings
from hypothesis import strategies as st
from policy_problems import OPTIONS, needed, recorded, replay
from rank_strategies import meeting
from strategies import HBM, graphs, homes, machines

from simulator import engine, metrics
from simulator.bounds import Limits, Team, Timing
from simulator.cost import durations_ns
from simulator.errors import CapacityError
from simulator.graph import Job
from simulator.hardware import Hardware
from simulator.plan import NOWHERE
from simulator.policies import FREE, POLICIES, Problem
from simulator.referee import check_plan, check_trace
from simulator.scenario import Switches


@dataclass(frozen=True)
class Given:
    problem: Problem

    def __repr__(self) -> str:
        p = self.problem
        ops = [
            (op.name, op.reads, op.writes, op.workspace_bytes, op.duration_ns, op.collective, op.stream)
            for op in p.graph.ops
        ]
        tensors = [(t.name, t.size_bytes, t.persistent) for t in p.graph.tensors]
        machine = p.hardware.model_dump(include={"links", "buses", "host", "tiers"}, exclude_defaults=True)
        rest = f"outputs={p.graph.outputs} homes={p.homes} budget={p.budget_bytes} groups={p.graph.groups}"
        return f"steps={p.graph.steps} {tensors=} {ops=} {rest} {machine=} {p.switches=}"


@st.composite
def problems(draw) -> Given:
    graph = draw(graphs(max_ops=8))
    turn = draw(st.integers(0, len(graph.ops)))
    ops = tuple(replace(op, phase="forward" if i < turn else "backward") for i, op in enumerate(graph.ops))
    graph = draw(meeting(replace(graph, ops=ops)))
    document = draw(machines()).model_dump(by_alias=True)
    document["topology"] = {"devices_per_node": 2}
    for bus in document["buses"].values():
        bus["scope"] = "node"
    document["fabrics"] = {"net": {"scope": "node", "bandwidth": "1 GB/s", "latency": f"{draw(st.integers(0, 3))} ns"}}
    hardware = Hardware.model_validate(document)
    start = draw(homes(graph, hardware))
    home = [
        draw(st.sampled_from([FREE, FREE, HBM])) if tier == NOWHERE else draw(st.sampled_from([FREE, tier]))
        for tier in start
    ]
    budget = max(1, max(needed(graph, home)) + draw(st.integers(-5, 60)))
    switches = Switches(collectives=draw(st.sampled_from(["own_stream", "own_stream", "compute_stream"])))
    times = durations_ns(graph, hardware, 0)
    alone = [replace(op, collective=None, duration_ns=ns) for op, ns in zip(graph.ops, times, strict=True)]
    lone = replace(graph, ops=tuple(alone))
    problem = Problem(
        graph, hardware, tuple(home), budget, times,
        lambda of, plan: replay(replace(of, graph=lone), plan), switches,
    )  # fmt: skip
    return Given(problem)


@pytest.mark.usefixtures("quick_plans")
@pytest.mark.parametrize(("name", "options"), OPTIONS)
@settings(max_examples=examples(30))
@given(case=problems())
def test_conformance(name, options, case):
    p = case.problem
    try:
        plan = POLICIES[name].plan(p, options)
        trace = engine.run([engine.Program(p.graph, plan, p.durations_ns)] * 2, p.hardware, budget_bytes=p.budget_bytes)
    except CapacityError as caught:
        event("does not fit" if caught.report.short_bytes > 0 else "fits in bytes")
        if caught.report.short_bytes <= 0:
            raise
        return
    event("runs beside" if any(p.streams) else "runs in line")
    assert trace.status == "ok", trace.blocked
    check_plan(p.graph, p.hardware, recorded(plan, trace))
    job = Job.of(p.graph, 2)
    check_trace(job, p.hardware, [plan] * 2, trace, p.budget_bytes, p.switches)
    start = p.known_homes
    repeats = metrics.repeats(job, trace)
    order = Timing.alone(p.precedence, p.durations_ns, may_repeat=repeats)
    limit = Limits(order, p.hardware, start, may_repeat=repeats).step(p.budget_bytes)
    for row in metrics.by_rank(job, p.hardware, trace):
        assert row["step_ns"] >= limit.ns
        parts = ("compute_ns", "recompute_ns", "stall_ns", "drain_ns")
        assert sum(row[part] for part in parts) == row["step_ns"]
    team = Team(job, p.hardware, (p.durations_ns,), (p.streams,))
    facts = (team.timings(may_repeat=repeats)[0], p.hardware, start)
    found = Limits(*facts, may_repeat=repeats, sharers=team.sharers(0)).step(p.budget_bytes)
    event(f"bound: {found.kind.split()[0]}")
    assert limit.ns <= found.ns <= metrics.summarise(job, p.hardware, trace)["step_ns"]
