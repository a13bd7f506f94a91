"""What a search has replayed is not replayed once more, and is the same."""

from __future__ import annotations

from dataclasses import replace

import simulator as hosim
from simulator import engine
from simulator.plan import Plan, Steps
from simulator.run.task import Tries

SCENARIO = "tiny_train_910c"
HERE, ELSEWHERE = object(), object()


def plan(ops=(0,), **more):
    steps = Steps()
    for op in ops:
        steps.compute(op)
    return Plan("p", ("hbm",), (0,), steps, **more)


def test_the_fastest_is_kept_whatever_it_says_of_itself():
    tries = Tries()
    tries.note(HERE, plan((1, 2)), "slow", 20)
    tries.note(HERE, plan(), "fast", 10)
    tries.note(HERE, plan((3,)), "as fast", 10)
    assert tries.take(HERE, replace(plan(), policy="row", notes=("a note",))) == "fast"
    assert tries.take(HERE, plan()) is None, "it is forgotten once a row has asked"


def test_another_plan_is_not_known():
    for other in (plan((2,)), plan(repeats=2), plan(starts_ns=(0, 5)), replace(plan(), home=(1,))):
        tries = Tries()
        tries.note(HERE, plan(), "trace", 10)
        assert tries.take(HERE, other) is None
        assert tries.take(HERE, plan()) is None


def test_another_problem_is_another_replay():
    tries = Tries()
    tries.note(HERE, plan(), "trace", 10)
    assert tries.take(ELSEWHERE, plan()) is None


def test_a_row_shows_what_its_search_has_replayed(monkeypatch):
    calls, run = [], engine.run
    monkeypatch.setattr(engine, "run", lambda *a, **k: calls.append(1) or run(*a, **k))
    shown = hosim.run(SCENARIO, policies=["static"])["static"]
    searched = len(calls)
    monkeypatch.setattr(Tries, "take", lambda self, problem, plan: None)
    again = hosim.run(SCENARIO, policies=["static"])["static"]
    assert len(calls) == 2 * searched + 1
    assert shown.summary == again.summary
    for table in ("spans", "waits", "memory"):
        assert getattr(shown, table).equals(getattr(again, table))


def test_each_plan_that_is_tried_is_told_while_somebody_listens():
    tries, told = Tries(), []
    tries.begin()
    with tries.told(told.append):
        tries.begin()
        tries.begin()
    tries.begin()
    with tries.told(told.append):
        tries.begin()
    assert told == [1, 2, 1]


def test_a_run_tells_which_plan_it_tries():
    told = []
    hosim.run(SCENARIO, policies=["static"], progress=lambda label, *_: told.append(label))
    assert told[:3] == ["static", "static, plan 1 is tried", "static, plan 2 is tried"]
