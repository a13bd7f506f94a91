"""Every policy, on random graphs and machines: its plan is valid, runs to the end, keeps to the room there is, and
leaves persistent state as it was; or it says that it does not fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from bounding import bound
from examples import examples
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from policy_problems import OPTIONS, needed, quick_first, recorded, replay
from strategies import DDR, HBM, allocators, graphs, homes, machines

from simulator import engine, metrics
from simulator.cost import durations_ns
from simulator.errors import CapacityError
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.lifetime import live_bytes
from simulator.plan import NOWHERE
from simulator.policies import FREE, POLICIES, Problem
from simulator.policies.decide import tune
from simulator.referee import RankPlan, check_plan, check_trace

LONGEST = ("static", {"recompute": True})
CHEAP = [row for row in OPTIONS if row[0] not in {"static", "recompute"} and row != ("reactive", {})]
"""Policies that search for nothing."""


def make(graph: Graph, hardware: Hardware, home: list[int], budget: float) -> Problem:
    times = durations_ns(graph, hardware)
    return Problem(graph, hardware, tuple(home), budget, times, replay)


@dataclass(frozen=True)
class Given:
    problem: Problem
    ample: bool

    def __repr__(self) -> str:
        p = self.problem
        keys = ("name", "reads", "writes", "workspace_bytes", "duration_ns", "phase", "barrier")
        ops = [tuple(getattr(op, key) for key in keys) for op in p.graph.ops]
        tensors = [(t.name, t.size_bytes, t.persistent) for t in p.graph.tensors]
        machine = p.hardware.model_dump(include={"links", "buses", "host", "tiers"}, exclude_defaults=True)
        rest = f"outputs={p.graph.outputs} homes={p.homes} budget={p.budget_bytes}"
        return f"steps={p.graph.steps} {tensors=} {ops=} {rest} {machine=}"


@st.composite
def problems(draw) -> Given:
    graph = draw(graphs(max_ops=8))
    turns = draw(st.lists(st.integers(0, len(graph.ops)), min_size=1, max_size=3))
    phases = [("forward", "backward")[sum(i >= turn for turn in turns) % 2] for i in range(len(graph.ops))]
    ops = tuple(replace(op, phase=phase) for op, phase in zip(graph.ops, phases, strict=True))
    walls = draw(st.sets(st.integers(0, len(ops) - 1), max_size=2)) if draw(st.integers(0, 3)) == 0 else set()
    ops = tuple(replace(op, barrier=i in walls) for i, op in enumerate(ops))
    graph = replace(graph, ops=ops)
    hardware = draw(machines(staged=True))
    start = draw(homes(graph, hardware))
    home = [
        draw(st.sampled_from([FREE, FREE, HBM])) if tier == NOWHERE else draw(st.sampled_from([FREE, tier]))
        for tier in start
    ]
    ample = draw(st.booleans())
    if not ample:
        tiers = dict(hardware.tiers)
        tiers["ddr"] = tiers["ddr"].model_copy(
            update={"capacity_bytes": tiers["ddr"].staging_bytes + draw(st.integers(0, 200))}
        )
        hardware = hardware.model_copy(update={"tiers": tiers})
    budget = max(1, max(needed(graph, home)) + draw(st.integers(-5, 60)))
    return Given(make(graph, hardware, home, budget), ample)


@pytest.mark.parametrize(("name", "options"), OPTIONS)
@settings(max_examples=examples(180))  # with fewer, no policy comes near a bound of links twice as high
@given(case=problems())
def test_conformance(name, options, case):
    p = case.problem
    try:
        plan = POLICIES[name].plan(p, options)
        program = engine.Program(p.graph, plan, p.durations_ns)
        trace = engine.run([program], p.hardware, budget_bytes=p.budget_bytes)
    except CapacityError as caught:
        event("does not fit" if caught.report.short_bytes > 0 else "fits in bytes")
        if caught.report.short_bytes <= 0:
            raise
        return
    event("runs")
    event("has barriers" if any(op.barrier for op in p.graph.ops) else "has none")
    assert trace.status == "ok"
    check_plan(p.graph, p.hardware, recorded(plan, trace))
    check_trace(p.graph, p.hardware, [plan], trace, p.budget_bytes)
    start = p.known_homes
    repeats = metrics.repeats(Job.of(p.graph), trace)
    event("repeats" if repeats else "runs each op once")
    limit = bound(p.graph, p.hardware, p.durations_ns, start, p.budget_bytes, may_repeat=repeats)
    assert metrics.summarise(p.graph, p.hardware, trace)["step_ns"] >= limit.ns
    entry = POLICIES[name]
    assert repeats <= entry.may_repeat(entry.read_options(options))
    pinned = [t for t, home in enumerate(p.homes) if home != FREE and t in p.lifetimes.inputs]
    assert [plan.home[t] for t in pinned] == [p.homes[t] for t in pinned]


@given(case=problems(), rows=st.permutations(CHEAP))
def test_a_search_chooses_the_first_of_the_fastest_whenever_it_ends(case, rows):
    p, made = case.problem, []

    def make(number):
        made.append(number)
        return POLICIES[rows[number][0]].plan(p, rows[number][1])

    def step_ns(number):
        try:
            found = replay(p, make(number))
        except CapacityError:
            return math.inf
        fits = all(found.peak_bytes[name] <= room for name, room in zip(p.tiers, p.capacities, strict=True))
        return found.step_ns if found.status == "ok" and fits else math.inf

    steps = [step_ns(number) for number in range(len(rows))]
    assume(min(steps) < math.inf)
    made.clear()
    plan = tune(p, [range(len(rows))], make)
    event(f"{len(made)} of {len(rows)} are tried")
    assert replay(p, plan).step_ns == min(steps)
    assert plan.policy == rows[steps.index(min(steps))][0]


@pytest.mark.parametrize("name", ["static", "reactive"])
@given(case=problems())
def test_what_each_op_needs_is_enough_where_the_rest_may_leave(name, case):
    """Static and reactive fit whenever pinned tensors and each working set do, if there is ample room away."""
    p = case.problem
    rest_at_home = sum(s for t, s in enumerate(p.sizes) if p.homes[t] == HBM and t in p.lifetimes.inputs)
    if (
        not case.ample
        or max(needed(p.graph, list(p.homes)), default=0) > p.budget_bytes
        or rest_at_home > p.budget_bytes
    ):
        return
    event("must fit")
    plan = POLICIES[name].plan(p, {})
    assert replay(p, plan).status == "ok"


@given(graphs(), machines())
def test_static_is_resident_where_all_fits(graph, hardware):
    home = [HBM if t.persistent else FREE for t in graph.tensors]
    p = make(graph, hardware, home, max(1, int(live_bytes(graph).max())))
    assert POLICIES["static"].plan(p).fixed == POLICIES["resident"].plan(p).fixed


@given(graphs(), machines(), st.sampled_from([FREE, DDR]))
def test_resident_needs_the_peak_of_what_is_live(graph, hardware, away):
    """One byte less than the liveness peak and resident does not fit; where all fits nothing needs to move."""
    home = [HBM if t.persistent else FREE for t in graph.tensors]
    peak = int(live_bytes(graph).max())
    p = make(graph, hardware, home, peak - 1)
    with pytest.raises(CapacityError) as caught:
        POLICIES["resident"].plan(p)
    assert caught.value.report.short_bytes == 1


@pytest.mark.parametrize(("name", "options"), quick_first(LONGEST))
@given(allocator=st.sampled_from(["best_fit", "caching", "fixed"]), case=problems(), found=allocators)
@settings(max_examples=examples(20))
def test_every_policy_under_every_allocator(name, options, allocator, case, found):
    p = case.problem
    hardware = p.hardware.model_copy(update={"allocator": found})
    try:
        plan = POLICIES[name].plan(p, options)
        if plan.fixed is None and allocator == "fixed":
            return
        program = engine.Program(p.graph, plan, p.durations_ns, allocator=allocator)
        trace = engine.run([program], hardware, budget_bytes=p.budget_bytes)
    except CapacityError as caught:
        event("does not fit" if caught.report.short_bytes > 0 else "fits in bytes")
        return
    event(trace.status)
    check_trace(p.graph, hardware, [RankPlan(plan, None, allocator)], trace, p.budget_bytes)
    if allocator == "fixed" or (allocator == "best_fit" and found.compaction is not None):
        assert trace.status == "ok"
