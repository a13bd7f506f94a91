"""The referee on plans made by hand: each broken rule is named with step, tensor and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hand import GRAPH, MACHINE, PLAN, TEXT, A, plan_of
from stories import graph

from simulator.errors import PlanError
from simulator.plan import COMPUTE, COPY, DETACH
from simulator.referee import check_plan
from simulator.referee.plan_laws import PlanWalk

WRONG_PLANS = {
    "reads what is only below": (
        "compute f; detach w hbm; compute g; detach a hbm",
        (
            "plan 'hand', action 0 (compute f): a tensor that an action reads is valid (hbm), found 'w' absent in hbm, "
            "valid in ddr; copy it into hbm before this action"
        ),
    ),
    "reads what it detached": (
        "copy w ddr hbm; detach w hbm; compute f; compute g; detach a hbm",
        (
            "plan 'hand', action 2 (compute f): a tensor that an action reads is valid (hbm), found 'w' absent in hbm, "
            "valid in ddr; copy it into hbm before this action"
        ),
    ),
    "reads before it is written": (
        "compute g; copy w ddr hbm; compute f; detach w hbm; detach a hbm",
        (
            "plan 'hand', action 0 (compute g): a tensor that an action reads is valid (hbm), found 'a' absent in hbm, "
            "not written before; write it before this action"
        ),
    ),
    "detaches the only copy": (
        "copy w ddr hbm; compute f; detach w hbm; detach a hbm; compute g",
        (
            "plan 'hand', action 3 (detach a from hbm): a tensor used later keeps a valid copy, found that it detaches "
            "the only valid copy of 'a', which op 'g' reads later; store it elsewhere first, or detach it after its "
            "last use"
        ),
    ),
    "detaches what a copy needs": (
        "copy w ddr hbm; compute f; detach w hbm; detach a hbm; copy a hbm ddr; compute g",
        "detaches the only valid copy of 'a', which a copy (action 4) reads later",
    ),
    "detaches a persistent tensor": (
        "copy w ddr hbm; detach w ddr; compute f; detach w hbm; compute g; detach a hbm",
        (
            "plan 'hand', action 3 (detach w from hbm): a tensor used later keeps a valid copy, found that it detaches "
            "the only valid copy of persistent 'w'; copy it to its home first"
        ),
    ),
    "copies what is there": (
        "copy w ddr hbm; copy w ddr hbm; compute f; detach w hbm; compute g; detach a hbm",
        (
            "plan 'hand', action 1 (copy w ddr -> hbm): a copy has work to do: its target is absent or stale, "
            "found 'w' valid in hbm already; drop this copy"
        ),
    ),
    "copies from nowhere": (
        "copy w hbm ddr; copy w ddr hbm; compute f; detach w hbm; compute g; detach a hbm",
        (
            "plan 'hand', action 0 (copy w hbm -> ddr): a tensor that an action reads is valid (hbm), found 'w' absent "
            "in hbm, valid in ddr; copy it into hbm before this action"
        ),
    ),
    "copies where no link leads": (
        "copy w ddr ddr; copy w ddr hbm; compute f; detach w hbm; compute g; detach a hbm",
        "a link joins the two tiers of a copy, found none from ddr to ddr; copy along the links of the machine",
    ),
    "detaches what is not there": (
        "copy w ddr hbm; compute f; detach w hbm; detach w hbm; compute g; detach a hbm",
        (
            "plan 'hand', action 3 (detach w from hbm): a tensor to detach is there, found 'w' absent from hbm; "
            "drop this detach, or make the tensor before it"
        ),
    ),
    "detaches what an op that is missing makes": (
        "copy w ddr hbm; detach w hbm; detach a hbm; compute g",
        (
            "plan 'hand', action 2 (detach a from hbm): a tensor to detach is there, found 'a' absent from hbm; "
            "drop this detach, or make the tensor before it"
        ),
    ),
    "leaves something": (
        "copy w ddr hbm; compute f; detach w hbm; compute g",
        (
            "plan 'hand', end of the plan: a training step ends as it began: persistent tensors valid at home, and "
            "nothing else held, found 'a' valid in hbm; copy it home, if it has one, and detach its other copies"
        ),
    ),
    "leaves a copy": (
        "copy w ddr hbm; compute f; compute g; detach a hbm",
        (
            "a training step ends as it began: persistent tensors valid at home, and nothing else held, found 'w' "
            "(home ddr) valid in hbm; copy it home, if it has one, and detach its other copies"
        ),
    ),
    "forgets an op": (
        "copy w ddr hbm; compute f; detach w hbm; detach a hbm",
        (
            "plan 'hand', end of the plan: every op runs in every training step, found no compute of op 'g' in "
            "training step 1 of 1; add it"
        ),
    ),
}


@pytest.mark.parametrize("wrong", WRONG_PLANS)
def test_each_broken_rule_of_a_plan_is_named(wrong: str):
    text, message = WRONG_PLANS[wrong]
    with pytest.raises(PlanError) as error:
        check_plan(GRAPH, MACHINE, plan_of(text))
    assert message in str(error.value)


def test_a_write_makes_the_home_stale_and_it_has_to_come_home():
    g = graph("w 10 persistent", "f: w -> w, 1 ns")
    with pytest.raises(PlanError, match="the only valid copy of persistent 'w'"):
        check_plan(g, MACHINE, plan_of("copy w ddr hbm; compute f; detach w hbm", g))
    with pytest.raises(PlanError, match=r"'w' \(home ddr\) valid in hbm"):
        check_plan(g, MACHINE, plan_of("copy w ddr hbm; compute f", g))
    check_plan(g, MACHINE, plan_of("copy w ddr hbm; compute f; copy w hbm ddr; detach w hbm", g))


def test_an_op_may_run_twice_and_what_it_writes_anew_may_be_dropped_before():
    again = "copy w ddr hbm; compute f; detach a hbm; compute f; detach w hbm; compute g; detach a hbm"
    check_plan(GRAPH, MACHINE, plan_of(again))


def test_outputs_are_given_up_last():
    g = replace(GRAPH, outputs=(A,))
    check_plan(g, MACHINE, plan_of(TEXT, g))
    early = "copy w ddr hbm; compute f; compute g; detach a hbm; copy w hbm ddr; detach w hbm"
    with pytest.raises(PlanError, match="a copy has work to do"):
        check_plan(g, MACHINE, plan_of(early, g))
    g = replace(graph("w 10 persistent, a 4", "f: w -> a w, 10 ns", "g: a ->, 5 ns"), outputs=(A,))
    with pytest.raises(PlanError, match="an output keeps a valid copy until the training step ends") as error:
        check_plan(g, MACHINE, plan_of(early, g))
    assert "action 3 (detach a from hbm)" in str(error.value)
    assert "'a' before action 4 (copy w hbm -> ddr)" in str(error.value)
    check_plan(
        g, MACHINE, plan_of("copy w ddr hbm; compute f; compute g; copy w hbm ddr; detach w hbm; detach a hbm", g)
    )


def test_a_record_of_several_steps_comes_home_between_them():
    g = replace(GRAPH, steps=2)
    check_plan(g, MACHINE, plan_of(TEXT, g, repeats=2))
    check_plan(g, MACHINE, plan_of(f"{TEXT}; {TEXT}", g))
    with pytest.raises(PlanError, match="no compute of op 'f' and 1 more in training step 2 of 2"):
        check_plan(g, MACHINE, plan_of(TEXT, g))
    kept = TEXT.replace("detach w hbm; ", "")
    with pytest.raises(PlanError, match=r"'w' \(home ddr\) valid in hbm"):
        check_plan(g, MACHINE, plan_of(f"{kept}; compute f; compute g; detach a hbm", g))
    with pytest.raises(PlanError, match="its repeats divide the 2 training steps"):
        check_plan(g, MACHINE, plan_of(TEXT, g, repeats=3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"home": (1,)}, "homes: every tensor has an entry, found 1 homes for 2 tensors; make the plan for this graph"),
        ({"home": (2, -1)}, "home of 'w': a home is a tier id from 0 to 1, or -1 for none, found 2"),
        (
            {"home": (-1, -1)},
            "exactly the tensors before the first op have a home (persistent tensors and inputs), found none",
        ),
        ({"home": (1, 0)}, "home of 'a': exactly the tensors before the first op have a home"),
        ({"tiers": ("hbm", "ssd")}, "its tiers are those of 'story' (hbm, ddr), found hbm, ssd"),
    ],
)
def test_homes_and_tiers_are_those_of_graph_and_machine(change: dict[str, Any], message: str):
    with pytest.raises(PlanError) as error:
        check_plan(GRAPH, MACHINE, replace(PLAN, **change))
    assert message in str(error.value)


def test_homes_fit_in_their_tiers():
    ddr = MACHINE.tiers["ddr"].model_copy(update={"capacity_bytes": 9})
    tight = MACHINE.model_copy(update={"tiers": {**MACHINE.tiers, "ddr": ddr}})
    with pytest.raises(PlanError, match=r"the homes in ddr fit there \(9 B\), found 10 B"):
        check_plan(GRAPH, tight, PLAN)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ((COMPUTE, 2, 0, 0), "action 0 (compute 2): an op id lies between 0 and 1, found 2"),
        ((COMPUTE, 0, -1, 0), "a stream id lies between 0 and 63, found -1"),
        ((COPY, 5, 0, 1), "action 0 (copy 5 hbm -> ddr): a tensor id lies between 0 and 1, found 5"),
        ((COPY, 0, 0, 4), "action 0 (copy w hbm -> 4): a tier id lies between 0 and 1, found 4"),
        ((DETACH, 0, 3, 0), "action 0 (detach w from 3): a tier id lies between 0 and 1, found 3"),
        ((7, 0, 0, 0), "action 0 (kind 7): an action is compute, copy, detach or sync (0 to 3), found 7"),
    ],
)
def test_codes_and_ids_are_in_range(code: tuple[int, int, int, int], message: str):
    plan = plan_of(TEXT)
    columns = [
        [code[i], *values] for i, values in enumerate((plan.fixed.kind, plan.fixed.a, plan.fixed.b, plan.fixed.c))
    ]
    with pytest.raises(PlanError) as error:
        check_plan(GRAPH, MACHINE, replace(plan, actions=type(plan.fixed).from_columns(*columns)))
    assert message in str(error.value)


def test_no_copy_in_crosses_a_barrier():
    """`w` comes in before `k` and is used behind it; behind the barrier, or used before it, it is fine."""
    g = graph("w 10 persistent, a 4", "f: w -> a, 10 ns", "k: ->, 1 ns", "h: w ->, 5 ns", "g: a ->, 5 ns")
    g = replace(g, ops=tuple(replace(op, barrier=op.name == "k") for op in g.ops))
    crossing = "copy w ddr hbm; compute f; detach w hbm; copy w ddr hbm; compute k; compute h; detach w hbm; compute g"
    with pytest.raises(PlanError) as error:
        check_plan(g, MACHINE, plan_of(f"{crossing}; detach a hbm", g))
    assert str(error.value) == (
        "plan 'hand', action 4 (compute k): no copy in is moved across barrier 'k', found 'w' copied in before it and "
        "not used yet (1 in all); copy it in behind the barrier"
    )
    behind = crossing.replace("copy w ddr hbm; compute k", "compute k; copy w ddr hbm")
    for text in (behind, "copy w ddr hbm; compute f; compute k; compute h; detach w hbm; compute g"):
        check_plan(g, MACHINE, plan_of(f"{text}; detach a hbm", g))


def test_the_same_actions_are_walked_once_and_a_fault_each_time(monkeypatch):
    walked, take = [], PlanWalk.take
    monkeypatch.setattr(PlanWalk, "take", lambda walk, codes: walked.append(walk) or take(walk, codes))
    fresh = replace(GRAPH)
    for _ in "ab":
        check_plan(fresh, MACHINE, PLAN)
    assert len(walked) == 1
    check_plan(fresh, MACHINE, PLAN, pinned=[A])
    for _ in "ab":
        with pytest.raises(PlanError):
            check_plan(fresh, MACHINE, plan_of("compute f; detach w hbm; compute g; detach a hbm"))
    assert len(walked) == 4
