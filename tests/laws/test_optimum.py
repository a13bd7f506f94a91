"""The optimum between the bounds and everybody else: no bound is above it, no policy below.

Premises are those of `optimal`: one step, one copy at a time on each link and nobody who slows it down, a host that
costs nothing. Sizes and times are small, so that the solver tells one nanosecond from the next.
"""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st
from policy_problems import problem, replay
from strategies import DDR, HBM, graphs, machines

from simulator.bounds import Limits, infeasible
from simulator.errors import CapacityError
from simulator.plan import NOWHERE
from simulator.policies import FREE, POLICIES, Problem
from simulator.referee import check_plan


@st.composite
def problems(draw) -> Problem:
    """A graph of up to eight ops with all kinds of homes, and a budget from what fits nobody to what fits all."""
    graph = draw(graphs(max_ops=8, max_steps=1))
    hardware = draw(machines(buses=False, host=False, one_channel=True)).model_copy(update={"copy_queues": {}})
    exists = set(graph.inputs)
    homes = {graph.tensors[t].name: draw(st.sampled_from([HBM, DDR, FREE])) for t in sorted(exists)}
    return problem(graph, draw(st.integers(20, 160)), homes, hardware)


def facts(p: Problem) -> tuple[list[int], float]:
    homes = [home if there else NOWHERE for home, there in zip(p.homes, p.starts_with, strict=True)]
    return homes, p.budget_bytes


@settings(max_examples=120)
@given(problems())
def test_no_bound_is_above_the_optimum_and_no_policy_below(p):
    others = {}
    for name in ("resident", "reactive", "lookahead", "offload_saved", "static"):
        try:
            others[name] = replay(p, POLICIES[name].plan(p))
        except CapacityError:
            continue
    try:
        plan = POLICIES["optimal"].plan(p, {"time_limit_s": 20})
    except CapacityError:
        event("does not fit")
        assert not others
        return
    assert infeasible(p.graph, p.hardware, *facts(p)) is None
    check_plan(p.graph, p.hardware, plan, [t for t in range(len(p.sizes)) if p.pinned(t)])
    assert plan.notes[0].startswith("proved optimal")
    found = replay(p, plan)
    event("stalls" if found.step_ns > p.clock[-1] else "as fast as compute")
    for relaxed in (False, True):
        limits = Limits(p.graph, p.hardware, p.durations_ns, facts(p)[0], relaxed=relaxed)
        assert limits.step(p.budget_bytes).ns <= found.step_ns
        assert limits.peak_bytes(found.step_ns) <= found.peak_bytes["hbm"]
    assert {name: other.step_ns for name, other in others.items() if other.step_ns < found.step_ns} == {}
