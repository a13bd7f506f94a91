"""The optimum between the bounds and everybody else: no bound is above it, no policy below.

Premises are those of `optimal`: one copy at a time on each link and nobody who slows it down, a host that costs
nothing. Sizes and times are small, so that the solver tells one nanosecond from the next.

The program's times and the engine's share no code: one is a solver's, of a scheduling problem, the other a clock. That
they agree to the nanosecond, in both directions, is what makes the optimum a yardstick: every solution is a run (*the
replay takes what the program says*), and every run is a solution (*a run is a solution*).
"""

from __future__ import annotations

import pytest
from bounding import limits_alone
from examples import examples
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from observed import Observed, hold, observe
from policy_problems import problem, replay, train
from strategies import DDR, HBM, graphs, machines

from simulator.bounds import infeasible
from simulator.errors import CapacityError
from simulator.plan import Plan
from simulator.policies import FREE, POLICIES, Problem
from simulator.policies.optimal import optimum
from simulator.policies.optimal.schedule import ScheduleModel
from simulator.referee import check_plan

ENOUGH_S = 300
"""A search that is out of time promises a plan, and no more: moments are enough, if the machine is not busy [s]."""

OTHERS = ("resident", "reactive", "lookahead", "offload_saved", "static")


@st.composite
def problems(draw, steps: tuple[int, int] = (1, 1)) -> Problem:
    """A graph of up to eight ops with all kinds of homes, and a budget from what fits nobody to what fits all."""
    graph = draw(graphs(max_ops=8, max_steps=steps[1]).filter(lambda g: g.steps >= steps[0]))
    hardware = draw(machines(buses=False, host=False, one_channel=True)).model_copy(update={"copy_queues": {}})
    exists = set(graph.inputs)
    homes = {graph.tensors[t].name: draw(st.sampled_from([HBM, DDR, FREE])) for t in sorted(exists)}
    return problem(graph, draw(st.integers(20, 160)), homes, hardware)


def facts(p: Problem) -> tuple[list[int], float]:
    homes = p.known_homes
    return homes, p.budget_bytes


def plans(p: Problem) -> dict[str, Plan]:
    """What other policies do, if it fits."""
    found = {}
    for name in OTHERS:
        try:
            found[name] = POLICIES[name].plan(p)
        except CapacityError:
            continue
    return found


def most_ns(p: Problem) -> int:
    """All ops and all copies one after another take less [ns]."""
    links = [(HBM, DDR), (DDR, HBM)]
    return p.clock[-1] + (len(p.graph.ops) + 2) * sum(p.copy_ns(t, *hop) for t in range(len(p.sizes)) for hop in links)


@settings(max_examples=examples(50))
@given(problems())
def test_no_bound_is_above_the_optimum_and_no_policy_below(p):
    others = {name: replay(p, plan) for name, plan in plans(p).items()}
    try:
        search = optimum(p, ENOUGH_S)
    except CapacityError:
        event("does not fit")
        assert not others
        return
    assert infeasible(p.graph, p.hardware, *facts(p)) is None
    check_plan(p.graph, p.hardware, search.plan, [t for t in range(len(p.sizes)) if p.pinned(t)])
    found = replay(p, search.plan)
    event("stalls" if found.step_ns > p.clock[-1] else "as fast as compute")
    assert found.step_ns == search.step_ns == search.least_ns
    limits = limits_alone(p.graph, p.hardware, p.durations_ns, facts(p)[0])
    assert limits.step(p.budget_bytes).ns <= found.step_ns
    assert limits.peak_bytes(found.step_ns) <= found.peak_bytes["hbm"]
    assert {name: other.step_ns for name, other in others.items() if other.step_ns < found.step_ns} == {}


@settings(max_examples=examples(40))
@given(problems())
def test_the_replay_takes_what_the_program_says(p):
    """From the program alone, with no plan to start from."""
    program = ScheduleModel(p, most_ns(p))
    program.compute_first()
    verdict = program.solve(ENOUGH_S)
    assert verdict.is_over
    assume(verdict.plan is not None)
    found = replay(p, verdict.plan)
    event("stalls" if found.step_ns > p.clock[-1] else "as fast as compute")
    assert (found.status, found.step_ns) == ("ok", verdict.step_ns)


@settings(max_examples=examples(40))
@given(problems(steps=(1, 3)))
def test_a_run_is_a_solution(p):
    """What any policy does, if it is of the program's kind; and the program finds no time too late."""
    before_ns = -p.durations_ns[-1] if p.graph.steps > 1 else 0
    for name, plan in plans(p).items():
        found = replay(p, plan)
        program = ScheduleModel(p, found.step_ns - before_ns)
        observed = None if found.trace is None else observe(p, program, plan, found.trace)
        if isinstance(observed, Observed):
            event(f"{name} moves" if observed.outs or observed.ins else "nothing moves")
            program.compute_first()
            hold(program, observed)
            verdict = program.solve(ENOUGH_S)
            assert verdict.plan is not None
            assert verdict.step_ns + before_ns <= found.step_ns


@settings(max_examples=examples(40))
@given(problems(steps=(2, 3)))
def test_of_several_steps_none_is_shorter_than_the_least(p):
    """Nor is a bound above."""
    others = {name: replay(p, plan) for name, plan in plans(p).items()}
    try:
        search = optimum(p, ENOUGH_S)
    except CapacityError:
        event("does not fit")
        assert not others
        return
    check_plan(p.graph, p.hardware, search.plan, [t for t in range(len(p.sizes)) if p.pinned(t)])
    found = replay(p, search.plan)
    event(f"proved: {search.is_proved}; stalls: {found.step_ns > p.clock[-1]}")
    assert search.least_ns <= found.step_ns == search.step_ns
    assert found.step_ns <= min((other.step_ns for other in others.values()), default=found.step_ns)
    limits = limits_alone(p.graph, p.hardware, p.durations_ns, facts(p)[0])
    assert limits.step(p.budget_bytes).ns <= found.step_ns


@pytest.mark.parametrize("steps", [1, 2])
def test_the_solver_is_not_heard(capfd, steps):
    POLICIES["optimal"].plan(problem(train(steps=steps), 31))
    assert capfd.readouterr().out == ""
