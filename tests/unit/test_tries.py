"""Each plan that a policy tries is told while somebody listens, and no longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simulator as hosim
from simulator.catalog import resolve
from simulator.policies import POLICIES
from simulator.run.case import execute, prepare

SCENARIO = "tiny_train_910c"


@pytest.fixture(scope="module", autouse=True)
def plans_are_quick():
    """What is tried here is the search."""


def test_each_plan_that_is_tried_is_told_while_somebody_listens():
    case, told = prepare(resolve(SCENARIO)), []
    plan = POLICIES["lookahead"].plan(case.problem, {"select_distance": 1, "distance": 1})
    case.problem.replay(plan)
    case.trials.begin(told.append)
    case.problem.replay(plan)
    case.problem.replay(plan)
    case.trials.begin(told.append)
    case.problem.replay(plan)
    assert told == [1, 2, 1]


def test_a_run_tells_which_plan_it_tries():
    told = []
    hosim.run(SCENARIO, policies=["static"], progress=lambda label, *_: told.append(label))
    assert told[:3] == ["static", "static, plan 1 is tried", "static, plan 2 is tried"]


def test_what_happened_under_the_fastest_plan_is_known_once():
    case = prepare(resolve(SCENARIO))
    plan = POLICIES["lookahead"].plan(case.problem, {"select_distance": 1, "distance": 1})
    case.trials.begin(lambda number: None)
    case.problem.replay(plan)
    known, again = case.trials.pop_trace(case.problem, replace(plan, policy="other words")), execute(case, [plan])
    assert known is not None
    assert [values.tolist() for values in known.spans.whole().values()] == [
        values.tolist() for values in again.spans.whole().values()
    ]
    assert case.trials.pop_trace(case.problem, plan) is None
    for problem, other in ((replace(case.problem), plan), (case.problem, replace(plan, starts_ns=(1,)))):
        case.problem.replay(plan)
        assert case.trials.pop_trace(problem, other) is None
