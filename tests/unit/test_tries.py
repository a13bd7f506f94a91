"""What a search has replayed is not replayed once more, and is the same."""

from __future__ import annotations

from dataclasses import replace

import simulator as hosim
from simulator import engine
from simulator.plan import Plan, Steps
from simulator.run.tries import Tries

SCENARIO = "tiny_train_910c"


def plan(ops=(0,), **more):
    steps = Steps()
    for op in ops:
        steps.compute(op)
    return Plan("p", ("hbm",), (0,), steps, **more)


def test_the_fastest_is_kept_whatever_it_says_of_itself():
    tries = Tries()
    tries.note(plan((1, 2)), "slow", 20)
    tries.note(plan(), "fast", 10)
    tries.note(plan((3,)), "as fast", 10)
    assert tries.take(replace(plan(), policy="row", notes=("a note",))) == "fast"
    assert tries.take(plan()) is None, "it is forgotten once a row has asked"


def test_another_plan_is_not_known():
    for other in (plan((2,)), plan(repeats=2), plan(starts_ns=(0, 5)), replace(plan(), home=(1,))):
        tries = Tries()
        tries.note(plan(), "trace", 10)
        assert tries.take(other) is None
        assert tries.take(plan()) is None


def test_a_row_shows_what_its_search_has_replayed(monkeypatch):
    calls, run = [], engine.run
    monkeypatch.setattr(engine, "run", lambda *a, **k: calls.append(1) or run(*a, **k))
    shown = hosim.run(SCENARIO, policies=["static"])["static"]
    searched = len(calls)
    monkeypatch.setattr(Tries, "take", lambda self, plan: None)
    again = hosim.run(SCENARIO, policies=["static"])["static"]
    assert len(calls) == 2 * searched + 1
    assert shown.summary == again.summary
    for table in ("spans", "waits", "memory"):
        assert getattr(shown, table).equals(getattr(again, table))
