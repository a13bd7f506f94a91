"""More bandwidth, or a larger budget, never hurts `static`: exactly so on a fixed family of small problems.

An optimal planner would keep these laws always. A heuristic keeps them where it reaches the optimum, which its local
search does on small graphs. Without that search anomalies remain: a plan is made by a greedy selection and one pass
over positions, and a better machine may tip it into a worse choice. They are bounded here by what was found on the
family: 4 % of the step for more bandwidth, 2 % for the largest of four budgets, 18 % for any of seventeen. With
recompute, what is made again is found by a bisection that another bandwidth may lead elsewhere; without local search
more bandwidth then costs at most 2.1 %.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from families import MEMBERS, faster, member
from policy_problems import replay

from simulator.errors import CapacityError
from simulator.hardware import Hardware
from simulator.lifetime import live_bytes
from simulator.policies import POLICIES, Problem, Replay

EXACT = [1, 4, 9, *(pytest.param(number, marks=pytest.mark.slow) for number in (0, 2, 3, *range(5, 9)))]
"""Members of the family; the larger ones are slow."""
SAMPLE = range(100)
FACTORS = (1.0, 1.5, 4.0)
SHARES = (0, 1, 2, 3)
CLOSE = (1.0, 1.15, 1.35, 1.6)


def again(p: Problem, hardware: Hardware | None = None, budget: float | None = None) -> Problem:
    """The problem on another machine, or with another budget."""
    return replace(
        p,
        hardware=hardware or p.hardware,
        budget_bytes=p.budget_bytes if budget is None else budget,
        trial=replay,
    )


def done(p: Problem, **options: int) -> Replay:
    """What becomes of the plan."""
    return replay(p, POLICIES["static"].plan(p, options))


def budgets(p: Problem) -> list[int]:
    """Budgets from the member's own to all that is live at once."""
    top = int(live_bytes(p.graph).max())
    return [int(p.budget_bytes + (top - p.budget_bytes) * share // 3) for share in SHARES]


@pytest.mark.parametrize("number", EXACT)
def test_more_bandwidth_never_makes_a_step_longer(number):
    p = member(number)[1]
    steps = [done(again(p, faster(p.hardware, factor))).step_ns for factor in FACTORS]
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize("number", EXACT)
def test_a_smaller_budget_never_gives_a_larger_peak_nor_a_shorter_step(number):
    p = member(number)[1]
    found = [done(again(p, budget=budget)) for budget in budgets(p)]
    peaks, steps = [one.peak_bytes["hbm"] for one in found], [one.step_ns for one in found]
    assert all(peak <= budget for peak, budget in zip(peaks, budgets(p), strict=True))
    assert peaks == sorted(peaks)
    assert steps == sorted(steps, reverse=True)


OVER = [23, 24, *(pytest.param(number, marks=pytest.mark.slow) for number in (20, 21, 22, *range(25, 30)))]


@pytest.mark.parametrize("number", OVER)
def test_a_plan_does_not_depend_on_how_many_steps_it_is_judged_over(number):
    """All laps are alike, and as much is tried for many as for few."""
    p = member(number)[1]
    if not all(p.graph.tensors[t].persistent for t in p.graph.inputs):
        pytest.skip("an input is there for one step")
    counts = (2, 3, 15, 16)
    plans = [POLICIES["static"].plan(again(replace(p, graph=replace(p.graph, steps=count)))) for count in counts]
    assert all(plan.fixed == plans[0].fixed for plan in plans)


def worst(steps: list[int]) -> float:
    """By how much a step is longer than one that should not be shorter."""
    return max(later / earlier - 1 for i, earlier in enumerate(steps) for later in steps[i:])


@pytest.mark.usefixtures("no_improvement")
@pytest.mark.slow
def test_the_anomalies_without_local_search_are_bounded():
    bandwidth, budget = [], []
    for number in SAMPLE:
        p = member(number)[1]
        bandwidth.append(worst([done(again(p, faster(p.hardware, f))).step_ns for f in FACTORS]))
        steps = []
        for bytes_ in budgets(p):
            try:
                steps.append(done(again(p, budget=bytes_)).step_ns)
            except CapacityError:
                continue
        budget.append(worst(steps))
    assert max(bandwidth) <= 0.04
    assert max(budget) <= 0.02
    assert sum(x > 0 for x in (*bandwidth, *budget)) <= 6


@pytest.mark.usefixtures("no_improvement")
@pytest.mark.slow
def test_the_anomalies_at_many_budgets_are_as_told():
    """Of 200 problems at 17 budgets each: how many have one, and how large the largest is."""
    found = []
    for number in range(MEMBERS):
        p = member(number)[1]
        top, steps = int(live_bytes(p.graph).max()), []
        for share in range(17):
            with suppress(CapacityError):
                budget = int(p.budget_bytes + (top - p.budget_bytes) * share / 16)
                steps.append(done(again(p, budget=budget)).step_ns)
        found.append(worst(steps))
    assert max(found) <= 0.18
    assert sum(x > 0 for x in found) <= 32
    assert sum(x > 0.05 for x in found) <= 5


@pytest.mark.usefixtures("no_improvement")
@pytest.mark.slow
def test_the_anomalies_with_recompute_are_bounded():
    found = []
    for number in SAMPLE:
        p = member(number)[1]
        machines = [faster(p.hardware, factor) for factor in CLOSE]
        found.append(worst([done(again(p, one), recompute=True).step_ns for one in machines]))
    assert max(found) <= 0.021
    assert sum(x > 0 for x in found) <= 4
