"""Laws of policies that handle dynamic reads at run time: what they issue obeys every rule, in any room they accept."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from digest_cases import DYNAMIC
from dynamic_cases import DDR, HBM, machine, moe
from dynamic_strategies import graphs_of, machines
from examples import some
from hypothesis import example, given
from hypothesis import strategies as st
from policy_problems import replay

from simulator import engine
from simulator.cost import durations_ns
from simulator.draws import Draws, drawn, popularity
from simulator.errors import CapacityError, PlanError
from simulator.graph import DynamicReads, Graph
from simulator.hardware import Hardware
from simulator.lifetime import live_bytes
from simulator.plan import COMPUTE, COPY, FREE, PART, Actions, Code, Plan, View
from simulator.policies import POLICIES, Problem, static
from simulator.referee import RankPlan, check_plan, check_trace
from simulator.referee.plan_laws import PlanWalk
from simulator.scenario import DrawsOrigin, Switches

pytestmark = pytest.mark.usefixtures("quick_plans")

graphs = graphs_of(samples=2, readers=st.integers(1, 2), early=st.booleans())
updating = graphs_of(samples=2, readers=st.integers(1, 2), early=st.booleans(), updates=st.just(True))
FEW = 12
"""Room for what these graphs make [B]."""
origins = st.builds(
    DrawsOrigin, distribution=st.sampled_from(["uniform", "zipf"]), stickiness=st.sampled_from([0.0, 0.8])
)


def problem(
    graph: Graph,
    hardware: Hardware,
    origin: DrawsOrigin,
    budget: float,
    here: Collection[int] = (),
    home: int = DDR,
) -> Problem:
    """Experts at home in DDR, or here, all else where the policy puts it; plans are tried as a run tries them."""
    homes = tuple(HBM if t in here else home if what.kind == "expert" else FREE for t, what in enumerate(graph.tensors))
    times = durations_ns(graph, hardware)

    def trial(of: Problem, plan: Plan):  # type: ignore[no-untyped-def]
        tried = plan.fixed is None and of.graph.dynamic_reads
        return replay(of, plan, drawn(of.graph, hardware, origin, 7, rehearsal=True) if tried else None)

    shares = popularity(graph, origin, 7)
    return Problem(graph, hardware, homes, budget, times, trial, popularity=shares)


def least(graph: Graph) -> int:
    """Room in which any of these graphs can run with dynamic reads on demand: what is known to be chosen, and more."""
    known = []
    for at in range(len(graph.ops)):
        dynamic = [one for op in graph.ops[at:] if (one := op.dynamic) and one.revealed_by < at]
        known.append(sum(sum(sorted(_sizes(graph, one), reverse=True)[: one.samples * one.each]) for one in dynamic))
    return max(known) + FEW


def _sizes(graph: Graph, dynamic: DynamicReads) -> list[int]:
    return [graph.tensors[t].size_bytes for t in dynamic.candidates]


def run(p: Problem, plan: Plan, draws: Draws, switches: Switches | None = None) -> engine.Trace:
    check_plan(p.graph, p.hardware, plan, draws=draws)
    program = engine.Program(p.graph, plan, p.durations_ns, draws=draws)
    trace = engine.run([program], p.hardware, budget_bytes=p.budget_bytes, switches=switches)
    check_trace(p.graph, p.hardware, [RankPlan(plan, draws)], trace, p.budget_bytes, switches)
    return trace


@pytest.mark.parametrize(("name", "options"), some(DYNAMIC, 3))
@example(graph=moe(1, 2, size=0, steps=2), origin=DrawsOrigin(distribution="uniform"), seed=0, spare=0)
@given(graph=graphs, origin=origins, seed=st.integers(0, 9), spare=st.integers(0, 120))
def test_what_a_policy_issues_runs_in_any_room_that_it_accepts(
    name: str, options: dict[str, Any], graph: Graph, origin: DrawsOrigin, seed: int, spare: int
) -> None:
    """And holds no more than its budget; on demand and hybrid accept what one op may choose."""
    hardware = machine()
    p = problem(graph, hardware, origin, least(graph) + spare)
    try:
        plan = POLICIES[name].plan(p, options)
    except CapacityError:
        assert name == "static" or options == {}, "what is chosen has room"
        return
    trace = run(p, plan, drawn(graph, hardware, origin, seed))
    assert trace.status == "ok"


UPDATING = [("reactive", {"dynamic": "on_demand", "evict": evict}) for evict in ("lru", "lfu", "hot")]
UPDATING += [("reactive", {}), ("static", {})]


@pytest.mark.parametrize(("name", "options"), UPDATING)
@given(graph=updating, origin=origins, seed=st.integers(0, 9), spare=st.integers(0, 120))
def test_what_ops_update_is_right_in_any_room_that_a_policy_accepts(
    name: str, options: dict[str, Any], graph: Graph, origin: DrawsOrigin, seed: int, spare: int
) -> None:
    """On demand goes home what was chosen alone; who knows nothing of draws copies all candidates home."""
    hardware = machine()
    p = problem(graph, hardware, origin, least(graph) + spare)
    try:
        plan = POLICIES[name].plan(p, options)
    except CapacityError:
        assert options.get("dynamic") != "on_demand", "what is chosen has room"
        return
    draws = drawn(graph, hardware, origin, seed)
    trace = run(p, plan, draws)
    assert trace.status == "ok"
    spans = trace.spans.whole()
    experts = [t for t, tensor in enumerate(graph.tensors) if tensor.kind == "expert" and p.homes[t] == DDR]
    out = (
        (spans["kind"] == COPY) & (spans["track"] == hardware.link_names.index("d2h")) & np.isin(spans["item"], experts)
    )
    chosen = {(op, step): {*draws.chosen(op, step)} for op in draws.chosen_flags for step in range(graph.steps)}
    due = sum(len(of) for (op, _), of in chosen.items() if graph.ops[op].dynamic.updates)
    if options.get("dynamic") == "on_demand":
        assert int(out.sum()) == due
    else:
        assert int(out.sum()) == len(experts) * graph.steps


@st.composite
def partly_here(draw: st.DrawFn) -> tuple[Graph, frozenset[int]]:
    """A graph, and all experts of some of its layers."""
    graph = draw(graphs)
    layers = draw(st.sets(st.sampled_from([op.dynamic.candidates for op in graph.ops if op.dynamic])))
    return graph, frozenset().union(*layers)


@pytest.mark.parametrize(("name", "options"), some(DYNAMIC, 3))
@given(drawn_graph=partly_here(), origin=origins, hardware=machines())
def test_what_stays_in_hbm_is_read_late_all_the_same(
    name: str,
    options: dict[str, Any],
    drawn_graph: tuple[Graph, frozenset[int]],
    origin: DrawsOrigin,
    hardware: Hardware,
) -> None:
    """Some experts are at home there; their ops take the time, and the host's, of what is drawn."""
    graph, here = drawn_graph
    budget = 2 * least(graph) + sum(t.size_bytes for t in graph.tensors)
    p = problem(graph, hardware, origin, budget, here)
    draws = drawn(graph, hardware, origin, 3)
    trace = run(p, POLICIES[name].plan(p, options), draws)
    assert trace.status == "ok"
    spans = trace.spans.whole()
    took = spans["end_ns"] - spans["start_ns"]
    for op in draws.chosen_flags:
        assert took[(spans["kind"] == COMPUTE) & (spans["item"] == op)].tolist() == draws.durations_ns(op)


@given(graphs, origins, st.integers(0, 120))
def test_the_static_part_of_hybrid_is_the_plan_of_static(graph: Graph, origin: DrawsOrigin, spare: int) -> None:
    """Of hybrid's steps, those that name no candidate, but for syncs, are those of `static` for the graph without."""
    hardware = machine()
    p = problem(graph, hardware, origin, least(graph) + spare)
    room = least(graph) - FEW
    mine = POLICIES["hybrid"].plan(p, {"cache": f"{room} B", "evict": "lru"})
    static_part = static.plan(
        replace(p, graph=p.graph.certain, budget_bytes=p.budget_bytes - room, popularity={}), static.Options()
    )
    draws = drawn(graph, hardware, origin, 3)
    program = engine.Program(graph, mine, p.durations_ns, draws=draws)
    issued = engine.run([program], hardware, budget_bytes=p.budget_bytes).issued[0].whole()
    codes = list(zip(*(issued[name].tolist() for name in ("kind", "a", "b", "c")), strict=True))
    kept = [code for code in codes if code[0] != 3 and (code[0] == 0 or code[1] not in graph.candidates)]
    assert static_part.fixed is not None
    assert kept == list(static_part.fixed.codes()) * static_part.repeats
    assert mine.home == static_part.home


def forgetful(plan: Plan, number: int, issued: list[Code | None]) -> Plan:
    """The plan without one of the steps that are decided; notes what is issued, and at last None."""
    start = plan.actions
    assert not isinstance(start, Actions)

    def steps(view: View) -> Iterator[Code]:
        decided = count()
        for code in start(view):
            if code[0] == PART or next(decided) != number:
                issued.extend(plan.static_parts[code[1]].codes() if code[0] == PART else [code])
                yield code
        issued.append(None)

    return replace(plan, actions=steps)


@given(graphs, origins, st.integers(0, 9), st.integers(0, 120), st.integers(0, 9))
def test_what_a_runtime_forgets_beside_a_static_part_is_refused_where_it_is_missed(
    graph: Graph, origin: DrawsOrigin, seed: int, spare: int, number: int
) -> None:
    """By the engine only if the referee, too, refuses what was issued; and what runs to its end, neither refuses."""
    p, issued = problem(graph, machine(), origin, least(graph) + spare), list[Code | None]()
    whole = POLICIES["hybrid"].plan(p, {"evict": "lru", "cache": f"{least(graph) - FEW} B"})
    plan, draws = forgetful(whole, number, issued), drawn(graph, p.hardware, origin, seed)
    try:
        run(p, plan, draws)
    except PlanError:
        with pytest.raises(PlanError):
            follow(PlanWalk(graph, p.hardware, plan, draws=draws), issued, graph.steps)


def follow(walk: PlanWalk, issued: Sequence[Code | None], steps: int) -> None:
    """Walk what was issued, up to where a runtime was refused, or to its end."""
    walk.take(code for code in issued if code is not None)
    assert issued[-1] is None, "the referee refuses what the engine does"
    walk.finish(steps)


@pytest.mark.parametrize(
    ("name", "options"), some([one for one in DYNAMIC if one[0] == "hybrid" or "dynamic" in one[1]], 3)
)
@given(graph=graphs, origin=origins, seed=st.integers(0, 9), spare=st.integers(0, 120))
def test_what_decides_at_run_time_runs_in_any_room_where_homes_are_free(
    name: str, options: dict[str, Any], graph: Graph, origin: DrawsOrigin, seed: int, spare: int
) -> None:
    """However it divides what is read dynamically, and moves nothing if all of it fits."""
    hardware = machine()
    p = problem(graph, hardware, origin, least(graph) + spare, home=FREE)
    trace = run(p, POLICIES[name].plan(p, options), drawn(graph, hardware, origin, seed))
    assert trace.status == "ok"
    if int(live_bytes(graph).max()) <= p.budget_bytes:
        assert not (trace.spans.whole()["kind"] == COPY).any()


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize(("sizes", "distribution", "seed", "budget"), [
    ({"size": 3, "samples": 2, "steps": 2}, "uniform", 0, 23),
    ({"size": 3, "samples": 1, "steps": 3}, "zipf", 0, 19),
    ({"size": 8, "samples": 2, "steps": 2, "experts": 4, "readers": 2}, "zipf", 1, 78),
])  # fmt: skip
def test_what_came_home_and_leaves_unused_does_not_block_a_runtime(
    sizes: dict[str, int], distribution: Any, seed: int, budget: int, ahead: int
) -> None:
    """Over one link: its copy in waited for room that a compute had taken which was issued later."""
    graph, origin = moe(3, **sizes), DrawsOrigin(distribution=distribution)
    p = problem(graph, machine(), origin, budget, home=FREE)
    plan = POLICIES["reactive"].plan(p, {"dynamic": "on_demand", "evict": "furthest", "look_ahead": ahead})
    assert run(p, plan, drawn(graph, p.hardware, origin, seed)).status == "ok"


@given(graph=graphs, origin=origins, spare=st.integers(0, 60), home=st.sampled_from([DDR, FREE]))
def test_hybrid_is_no_slower_than_a_runtime_on_demand(graph: Graph, origin: DrawsOrigin, spare: int, home: int) -> None:
    """Under the draws that both try their plans with; and it has a plan wherever that has one."""
    p = problem(graph, machine(), origin, least(graph) - FEW + spare, home=home)
    try:
        other = POLICIES["reactive"].plan(p, {"dynamic": "on_demand"})
    except CapacityError:
        return
    ours, theirs = (p.replay(plan) for plan in (POLICIES["hybrid"].plan(p, {}), other))
    assert (ours.status, theirs.status) == ("ok", "ok")
    assert ours.step_ns <= theirs.step_ns


@given(graphs, origins, st.integers(0, 60), st.integers(0, 9))
def test_a_perfect_guess_fetches_nothing_in_vain(graph: Graph, origin: DrawsOrigin, spare: int, seed: int) -> None:
    """Each copy in is of something that is chosen in that step, or in the next."""
    hardware = machine()
    p = problem(graph, hardware, origin, 2 * least(graph) + spare)
    plan = POLICIES["hybrid"].plan(p, {"prefetch": "speculative", "accuracy": 1.0, "evict": "lru"})
    draws = drawn(graph, hardware, origin, seed)
    trace = run(p, plan, draws)
    spans = trace.spans.whole()
    chosen = {t for op in draws.chosen_flags for step in range(graph.steps) for t in draws.chosen(op, step)}
    copied = spans["item"][(spans["kind"] == 1) & (spans["track"] == list(hardware.links).index("h2d"))]
    assert set(copied.tolist()) <= chosen | set(range(len(graph.tensors))) - graph.candidates
    assert p.compute_tier == HBM
