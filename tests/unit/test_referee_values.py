"""The referee on plans that run ops again, or in another order: what each op reads is what program order gives it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stories import graph, machine, steps

from simulator.errors import PlanError
from simulator.graph_builder import GraphBuilder
from simulator.plan import NOWHERE, Plan
from simulator.referee import check_plan

MACHINE = machine()
UPDATED = graph("w 10 persistent, a 4, b 4", "f: w -> a", "g: a -> b", "u: b w -> w", "k: a ->", steps=2)


def judge(g, text, **home):
    homes = tuple(MACHINE.tier_names.index(home.get(t.name, "hbm")) if t.persistent else NOWHERE for t in g.tensors)
    check_plan(g, MACHINE, Plan("hand", MACHINE.tier_names, homes, steps(g, MACHINE, text), g.steps))


def refused(g, text):
    with pytest.raises(PlanError) as caught:
        judge(g, text)
    return str(caught.value)


def test_an_op_may_run_again_as_long_as_it_reads_the_same():
    judge(
        UPDATED,
        "compute f; compute g; detach a hbm; compute f; compute u; compute k; detach a hbm; detach b hbm",
    )


def test_an_op_that_would_read_what_was_overwritten_since_is_refused_with_both_makers():
    said = refused(
        UPDATED,
        "compute f; compute g; detach a hbm; compute u; compute f; compute k; detach a hbm; detach b hbm",
    )
    assert "action 4 (compute f)" in said
    assert "reads the values that program order gives it" in said
    assert "'w' as op 'u' makes it, not as the training step began" in said


def test_a_value_that_a_second_run_brought_back_is_not_the_one_that_a_later_op_reads():
    g = graph("a 4", "f: -> a", "g: a -> a", "k: a ->")
    said = refused(g, "compute f; compute g; compute f; compute k; detach a hbm")
    assert "action 3 (compute k)" in said
    assert "'a' as op 'f' makes it, not as op 'g' makes it" in said
    judge(g, "compute f; compute g; compute f; compute g; compute k; detach a hbm")


def test_an_update_in_place_cannot_run_twice():
    said = refused(UPDATED, "compute f; compute g; compute u; compute u; compute k; detach a hbm; detach b hbm")
    assert "action 3 (compute u)" in said
    assert "'w' as op 'u' makes it, not as the training step began" in said


def test_another_order_that_swaps_a_read_and_a_write_is_refused():
    g = graph("w 10 persistent", "f: w ->", "u: -> w")
    assert "'w' as op 'u' makes it, not as the training step began" in refused(g, "compute u; compute f")


def test_a_step_ends_with_the_last_values():
    g = graph("w 10 persistent", "u: -> w", "v: -> w")
    judge(g, "compute v; compute u; compute v")
    said = refused(g, "compute v; compute u")
    assert "a tensor that outlasts a training step ends it with its value in program order" in said
    assert "'w' as op 'u' makes it, not as op 'v' makes it" in said


@pytest.mark.parametrize(
    ("left", "found"),
    [
        (
            "copy w hbm ddr",
            (
                "a training step ends as it began: persistent tensors valid at home, and nothing else held, found "
                "'w' (home hbm) valid in ddr; copy it home, if it has one, and detach its other copies"
            ),
        ),
        (
            "copy b hbm ddr",
            (
                "a training step ends as it began: persistent tensors valid at home, and nothing else held, found "
                "'b' valid in ddr"
            ),
        ),
    ],
)
def test_a_step_that_leaves_a_copy_is_blamed_where_the_next_one_finds_it_not_over(left, found):
    step = "compute f; compute g; compute u; {}compute k; detach a hbm; detach b hbm"
    plan = Plan(
        "hand",
        MACHINE.tier_names,
        (0, NOWHERE, NOWHERE),
        steps(UPDATED, MACHINE, "; ".join((step.format(f"{left}; "), step.format("")))),
    )
    with pytest.raises(PlanError) as caught:
        check_plan(UPDATED, MACHINE, plan)
    assert str(caught.value).startswith(f"plan 'hand', end of training step 1: {found}")


def test_after_the_last_step_nothing_that_outlasts_it_changes():
    g = graph("w 10 persistent, a 4", "u: -> w", "v: -> w", "f: -> a")
    judge(g, "compute u; compute v; compute f; detach a hbm; compute f; detach a hbm")
    said = refused(g, "compute u; compute v; compute f; detach a hbm; compute u")
    assert "no op after the last training step changes a tensor that outlasts it" in said
    assert "'w'" in said


def test_a_copy_that_is_left_behind_the_last_step_is_named_beside_what_steps_change():
    g = GraphBuilder("late")
    for name in ("w", "e0", "e1"):
        g.tensor(name, 4, persistent=True)
    g.tensor("r", 1)
    g.op("u", ["w"], ["w", "r"], duration_ns=1)
    g.op("f", ["r", "e0", "e1"], dynamic=g.dynamic_reads("f", "u", ["e0", "e1"]))
    text = "copy e0 ddr hbm; copy e1 ddr hbm; compute u; compute f; detach r hbm; detach e0 hbm"
    home = {"e0": "ddr", "e1": "ddr"}
    judge(g.build(), f"{text}; detach e1 hbm", **home)
    with pytest.raises(PlanError, match=r"found 'e1' \(home ddr\) valid in hbm; copy it"):
        judge(g.build(), text, **home)


def test_what_is_not_repeatable_runs_once():
    g = graph("a 4", "f: -> a", "k: a ->")
    once = replace(g, ops=(replace(g.ops[0], repeatable=False), g.ops[1]))
    text = "compute f; detach a hbm; compute f; compute k; detach a hbm"
    judge(g, text)
    said = refused(once, text)
    assert "action 2 (compute f)" in said
    assert "an op that is not repeatable runs once in a training step" in said
