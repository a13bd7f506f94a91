"""Dynamic reads by hand: an exact timeline, what is refused, shares and files of draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dynamic_cases import DDR, HBM, chosen_flags, machine, moe, on_demand, plan_of, play
from replays import rows

from simulator.bounds import Limits, Precedence, Timing
from simulator.cost import durations_ns
from simulator.draws import Draws, Routing, Shares, drawn, popularity
from simulator.errors import ConfigError, PlanError
from simulator.formats import read_routing
from simulator.hardware import Hardware
from simulator.metrics import summarise
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, Actions, Code, Plan, View
from simulator.referee import RankPlan, check_trace
from simulator.scenario import DrawsOrigin
from simulator.trace import CAUSES

GRAPH = moe(1, 3, steps=2)
MACHINE = machine()
ROUTE, SHARED, EXPERTS = range(3)
CHOICES = {"L0/experts": [[1], [2]]}
DRAWS = Draws(GRAPH, MACHINE, 0, chosen_flags(GRAPH, CHOICES))


def test_a_late_read_waits_for_its_transfer_alone() -> None:
    """Router 0 to 5, then expert 1 (11 B) comes while the shared op runs 5 to 8; in the next step expert 2 (12 B)."""
    plan = plan_of(GRAPH, on_demand(GRAPH), MACHINE)
    trace = play(GRAPH, plan, MACHINE, DRAWS)
    spans = [(s["kind"], s["item"], s["start_ns"], s["end_ns"]) for s in rows(trace.spans)]
    expert = GRAPH.ops[EXPERTS].dynamic.candidates  # type: ignore[union-attr]
    assert spans == [
        (COMPUTE, ROUTE, 0, 5),
        (COMPUTE, SHARED, 5, 8),
        (COPY, expert[1], 5, 16),
        (COMPUTE, EXPERTS, 16, 17),
        (COMPUTE, ROUTE, 17, 22),
        (COMPUTE, SHARED, 22, 25),
        (COPY, expert[2], 22, 34),
        (COMPUTE, EXPERTS, 34, 35),
    ]
    waits = [(w["start_ns"], w["end_ns"], CAUSES[w["cause"]]) for w in rows(trace.waits)]
    assert waits == [(8, 16, "transfer"), (25, 34, "transfer")]


def test_what_is_read_for_certain_as_well_may_be_there_from_the_step_before() -> None:
    """Expert 0 is chosen in both steps and stays; an op that always reads it waits for no copy in the second."""
    base = moe(1, 3, size=100, steps=2)
    use = base.ops[EXPERTS].dynamic.candidates[:1]  # type: ignore[union-attr]
    last = replace(base.ops[EXPERTS], name="use", reads=use, writes=(), dynamic=None, duration_ns=3)
    graph = replace(base, ops=(*base.ops, last))
    draws = Draws(graph, MACHINE, 0, chosen_flags(graph, {"L0/experts": [[0], [0]]}))
    plan = plan_of(graph, on_demand(graph, keep=3), MACHINE)
    step_ns = summarise(graph, MACHINE, play(graph, plan, MACHINE, draws))["step_ns"]
    certain = graph.certain
    order = replace(Timing.alone(Precedence.of(certain), durations_ns(certain, MACHINE)), outlasting=graph.cacheable)
    assert Limits(order, MACHINE, plan.home).step(10**6).ns <= step_ns == 5 + 3 + 1 + 3


def test_what_never_moves_is_read_late_all_the_same() -> None:
    """All experts are at home in HBM and no step names them: one of 1 MB and a few bytes takes 1,001 ns to read."""
    graph = moe(1, 3, size=10**6, steps=2)
    steps = [(COMPUTE, op, 0, 0) for op in range(3)]
    made = [t for op in graph.ops for t in op.writes]
    codes = Actions.from_columns(*zip(*steps, *((DETACH, t, HBM, 0) for t in made), strict=True))
    home = tuple(HBM if tensor.persistent else NOWHERE for tensor in graph.tensors)
    plan = Plan("stays", MACHINE.tier_names, home, codes, repeats=2)
    draws = Draws(graph, MACHINE, 0, chosen_flags(graph, {"L0/experts": [[0, 1], [2]]}))
    trace = play(graph, plan, MACHINE, draws)
    check_trace(graph, MACHINE, [RankPlan(plan, draws)], trace)
    took = [s["end_ns"] - s["start_ns"] for s in rows(trace.spans) if s["item"] == EXPERTS]
    assert took == [2001, 1001]


def selecting(price_ns: int) -> Hardware:
    """The machine, whose host takes so long to find one chosen candidate."""
    reactive = MACHINE.host.reactive.model_copy(update={"select_ns": price_ns})
    return MACHINE.model_copy(update={"host": MACHINE.host.model_copy(update={"reactive": reactive})})


def timeline(hardware: Hardware, choices: dict[str, list[list[int]]], keep: int = 0) -> tuple[list[str], list[str]]:
    """What runs when, and what is waited for, as two texts a line."""
    draws = Draws(GRAPH, hardware, 0, chosen_flags(GRAPH, choices))
    trace = play(GRAPH, plan_of(GRAPH, on_demand(GRAPH, keep), hardware), hardware, draws)
    names = {COMPUTE: [op.name for op in GRAPH.ops], COPY: [tensor.name for tensor in GRAPH.tensors]}
    spans = [f"{s['start_ns']}-{s['end_ns']} {names[s['kind']][s['item']]}" for s in rows(trace.spans)]
    return spans, [f"{w['start_ns']}-{w['end_ns']} {CAUSES[w['cause']]}" for w in rows(trace.waits)]


def test_the_host_pays_for_what_it_selects_before_it_moves_it() -> None:
    """The host sees at 5 that expert 1 is read, and has found it at 7; all that it issues comes so much later."""
    spans, waits = timeline(selecting(2), CHOICES)
    assert spans == [
        "0-5 L0/route",
        "7-10 L0/shared",
        "7-18 L0/expert.1",
        "18-19 L0/experts",
        "19-24 L0/route",
        "26-29 L0/shared",
        "26-38 L0/expert.2",
        "38-39 L0/experts",
    ]
    assert waits == ["5-7 host", "10-18 transfer", "24-26 host", "29-38 transfer"]


def test_what_is_there_already_is_selected_before_the_op_that_reads_it() -> None:
    """Expert 1 stays for the second step: nothing moves, the shared op goes ahead, and the host has found it at 29."""
    spans, waits = timeline(selecting(5), {"L0/experts": [[1], [1]]}, keep=1)
    assert spans[-3:] == ["22-27 L0/route", "27-30 L0/shared", "32-33 L0/experts"]
    assert waits[-1] == "30-32 host"


def test_nothing_is_selected_where_nobody_asks() -> None:
    """All three candidates are brought; that the op reads one of them costs the host nothing."""
    steps = [
        *((COPY, FIRST + i, DDR, HBM) for i in range(3)),
        *((COMPUTE, op, 0, 0) for op in range(3)),
        *((DETACH, FIRST + i, HBM, 0) for i in range(3)),
    ]
    ends = []
    for price in (0, 50):
        hardware = selecting(price)
        trace = play(GRAPH, plan_of(GRAPH, runtime(*steps), hardware), hardware, DRAWS)
        ends.append([s["end_ns"] for s in rows(trace.spans)])
    assert ends[0] == ends[1]


def runtime(*steps: Code | Callable[[View], object]) -> Callable[[View], Iterator[Code]]:
    """A plan that issues these codes, and looks in between."""

    def issue(view: View) -> Iterator[Code]:
        for step in steps:
            if callable(step):
                step(view)
            else:
                yield step

    return issue


FIRST = GRAPH.ops[EXPERTS].dynamic.candidates[0]  # type: ignore[union-attr]
REFUSED = {
    "a look before the reveal": (
        [(COMPUTE, ROUTE, 0, 0), lambda view: view.chosen(EXPERTS)],
        "action 1 (reads of op 'L0/experts'): a choice is known once the op that reveals it ('L0/route') has",
    ),
    "a look before the router": ([lambda view: view.chosen(EXPERTS)], "found a look before that"),
    "a look at another op": (
        [lambda view: view.chosen(SHARED)],
        "reads of op 'L0/shared'): only an op with dynamic reads has a choice, found 'L0/shared'; ask for another",
    ),
    "a guess before the layer before": ([lambda view: view.predicted(EXPERTS, 1.0)], "found a look before that"),
    "an issue before the reveal": (
        [*((COPY, FIRST + i, DDR, HBM) for i in range(2)), *((COMPUTE, op, 0, 0) for op in (0, 1, 2))],
        "are valid in the compute tier, found 'L0/expert.2' absent in hbm, valid in ddr; copy all in first, or sync",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nobody_acts_on_a_draw_before_its_reveal(name: str) -> None:
    steps, message = REFUSED[name]
    with pytest.raises(PlanError) as caught:
        play(GRAPH, plan_of(GRAPH, runtime(*steps), MACHINE), MACHINE, DRAWS)
    assert message in str(caught.value)


def test_what_is_issued_before_its_reveal_starts_when_what_it_reads_is_there() -> None:
    """All three are brought; expert 1 is the second to come (21 ns), and the op does not wait for the third."""
    graph = moe(1, 3, steps=1)
    first = graph.ops[EXPERTS].dynamic.candidates[0]  # type: ignore[union-attr]
    made = [t for op in graph.ops for t in op.writes]
    steps = [
        *((COPY, first + i, DDR, HBM) for i in range(3)),
        *((COMPUTE, op, 0, 0) for op in range(3)),
        *((DETACH, t, HBM, 0) for t in (*made, first, first + 1, first + 2)),
    ]
    draws = Draws(graph, MACHINE, 0, chosen_flags(graph, {"L0/experts": [[1]]}))
    trace = play(graph, plan_of(graph, runtime(*steps), MACHINE), MACHINE, draws)
    assert [(s["start_ns"], s["end_ns"]) for s in rows(trace.spans) if s["item"] == EXPERTS][-1] == (21, 22)


def test_zipf_gives_ranks_to_candidates_by_the_seed() -> None:
    origin = DrawsOrigin(distribution="zipf", skew=1.0)
    graph = moe(2, 4)
    one, two = (popularity(graph, origin, seed) for seed in (1, 2))
    weights = np.array([1, 1 / 2, 1 / 3, 1 / 4])
    for shares in (*one.values(), *two.values()):
        assert sorted(shares, reverse=True) == pytest.approx(weights / weights.sum())
    assert one != two


def test_the_same_rank_has_the_same_share_in_every_layer() -> None:
    """So that who is hottest hangs on ranks alone, and not on how a processor rounds sums in one order or another."""
    graph, origin = moe(60, 128), DrawsOrigin(distribution="zipf", skew=1.1)
    shares = popularity(graph, origin)
    assert len({share for of_layer in shares.values() for share in of_layer}) == 128
    named = {layer: dict(enumerate(of_layer)) for layer, of_layer in enumerate(shares.values())}
    again = popularity(graph, Shares(named, "shares.csv"))
    assert len({share for of_layer in again.values() for share in of_layer}) == 128


def test_draws_have_the_shares_that_they_say() -> None:
    """The most likely of 8, of which one is drawn 4,000 times, comes as often as its share; the others, too."""
    graph, origin = moe(1, 8, steps=4000), DrawsOrigin(distribution="zipf", skew=1.1)
    (shares,) = popularity(graph, origin, 5).values()
    often = drawn(graph, MACHINE, origin, 5).chosen_flags[EXPERTS].mean(axis=0)
    assert often == pytest.approx(shares, abs=4 * 0.5 / 4000**0.5)
    rehearsed = drawn(graph, MACHINE, origin, 5, rehearsal=True).chosen_flags[EXPERTS]
    assert rehearsed.mean(axis=0) == pytest.approx(shares, abs=4 * 0.5 / 4000**0.5)
    assert not np.array_equal(rehearsed, drawn(graph, MACHINE, origin, 5).chosen_flags[EXPERTS])


@pytest.mark.slow
def test_ranks_draw_apart_from_the_same_shares() -> None:
    """They have one router, so that a policy's hot experts are hot on each of them."""
    graph, origin = moe(1, 8, steps=4000), DrawsOrigin(distribution="zipf", skew=1.1)
    (shares,) = popularity(graph, origin, 5).values()
    flags = [drawn(graph, MACHINE, origin, 5, rank=rank).chosen_flags[EXPERTS] for rank in range(3)]
    for one in flags:
        assert one.mean(axis=0) == pytest.approx(shares, abs=4 * 0.5 / 4000**0.5)
    assert not np.array_equal(flags[0], flags[1])
    assert not np.array_equal(flags[1], flags[2])
    assert np.array_equal(flags[0], drawn(graph, MACHINE, origin, 5).chosen_flags[EXPERTS])


@pytest.mark.slow
def test_two_of_three_are_drawn_one_after_another() -> None:
    """With shares 1/2, 1/3, 1/6 the last is left out with 1/2 * 2/3 + 1/3 * 3/4 = 7/12."""
    graph = moe(1, 3, each=2, steps=6000)
    origin = Shares({0: {0: 3, 1: 2, 2: 1}}, "shares.csv")
    left_out = 1 - drawn(graph, MACHINE, origin, 1).chosen_flags[EXPERTS].mean(axis=0)
    assert left_out[2] == pytest.approx(7 / 12, abs=4 * 0.5 / 6000**0.5)


def test_a_choice_sticks() -> None:
    graph = moe(1, 100, steps=2000)
    flags = drawn(graph, MACHINE, DrawsOrigin(stickiness=0.75), 3).chosen_flags[EXPERTS].argmax(axis=1)
    assert np.mean(flags[1:] == flags[:-1]) == pytest.approx(0.75 + 0.25 / 100, abs=0.04)


def test_shares_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shares.csv"
    path.write_text("layer,expert,share\n3,0,0.25\n3,1,0\n3,2,0.75\n\n")
    origin = read_routing(path)
    assert popularity(GRAPH, origin) == {EXPERTS: (0.25, 0.0, 0.75)}


def test_choices_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "routing.csv"
    path.write_text("step,op,chosen\n0,L0/experts,1\n1,L0/experts,2\n")
    origin = read_routing(path)
    draws = drawn(GRAPH, MACHINE, origin, 7)
    assert [draws.chosen(EXPERTS, step) for step in (0, 1)] == [DRAWS.chosen(EXPERTS, step) for step in (0, 1)]
    assert popularity(GRAPH, origin) == {EXPERTS: (1 / 5, 2 / 5, 2 / 5)}


BAD_FILES = {
    "": "f.csv:1: the first line names layer,expert,share or step,op,chosen, found ''; name the columns",
    "layer,expert\n": "found 'layer,expert' without share; name the columns",
    "layer,expert,share\n": "f.csv:1: a file of routing has lines, found none; add them",
    "layer,expert,share\n0,1\n": "f.csv:2: a line has 3 fields, found 2; correct it",
    "layer,expert,share\n0,x,1\n": "f.csv:2: expert is a whole number from 0 to 1,000,000, found 'x'",
    f"layer,expert,share\n0,{'9' * 5000},1\n": "f.csv:2: expert is a whole number from 0 to 1,000,000, found '999",
    "layer,expert,share\n0,1,-1\n": "f.csv:2: a share is a number from 0, found '-1'",
    "layer,expert,share\n0,1,1\n0,1,1\n": "f.csv:3: a layer names each expert once, found 1 twice",
    "step,op,chosen\n0,f,1\n0,f,1\n": "f.csv:3: a step names each op once, found 'f' twice",
    "step,op,chosen\n0,f,one\n": "f.csv:2: chosen is a whole number from 0 to 1,000,000, found 'one'",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_a_wrong_file_is_one_message(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_routing(path)
    assert BAD_FILES[text] in str(caught.value)


def shares(layers: dict[int, dict[int, float]]) -> Shares:
    return Shares(layers, "s.csv")


def routing(**steps: tuple[int, ...]) -> Routing:
    return Routing({(int(step[1:]), "L0/experts"): chosen for step, chosen in steps.items()}, "r.csv")


MISFITS = {
    "too many layers": (
        shares({0: {0: 1.0}, 1: {0: 1.0}}),
        "s.csv: there is a layer for each op that chooses, in program order, found 2 layers for 1; correct the file",
    ),
    "too many experts": (
        shares({0: {3: 1.0}}),
        "s.csv: experts 0 to 2 of layer 0 have a share, at least 1 of them above 0, found 1 up to expert 3, 1 of them",
    ),
    "too few experts": (shares({0: {0: 1.0, 1: 1.0}}), "found 2 up to expert 1, 2 of them above 0; correct the file"),
    "no share": (shares({0: {0: 0.0, 1: 0.0, 2: 0.0}}), "found 3 up to expert 2, 0 of them above 0; correct the file"),
    "no such op": (
        Routing({(0, "f"): (0,)}, "r.csv"),
        "r.csv: 'L0/experts' chooses 1 to 1 of candidates 0 to 2 in step 0, found nothing; take the file of this model",
    ),
    "too few steps": (routing(s0=(1,)), "candidates 0 to 2 in step 1, found nothing; take the file of this model and"),
    "an unknown candidate": (routing(s0=(3,), s1=(0,)), "candidates 0 to 2 in step 0, found 3; take the file"),
    "too many": (routing(s0=(0, 1), s1=(0,)), "chooses 1 to 1 of candidates 0 to 2 in step 0, found 0, 1; take"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_file_of_another_model_is_one_message(name: str) -> None:
    origin, message = MISFITS[name]
    with pytest.raises(ConfigError) as caught:
        drawn(GRAPH, MACHINE, origin)
    assert message in str(caught.value)


def test_durations_are_those_of_what_is_chosen() -> None:
    """23 B at 1 GB/s take 23 ns."""
    tiers = {"hbm": {"capacity": "inf", "bandwidth": "1 GB/s"}}
    compute = {"peak": {"bf16": "1 TFLOP/s"}}
    slow = Hardware.model_validate({"name": "slow", "compute_tier": "hbm", "compute": compute, "tiers": tiers})
    draws = Draws(GRAPH, slow, 0, chosen_flags(GRAPH, {"L0/experts": [[1, 2], [0]]}))
    assert draws.durations_ns(EXPERTS) == [23, 10]
    assert draws.step_durations_ns([5, 3, 99], 1) == [5, 3, 10]


def test_draws_come_from_one_place() -> None:
    with pytest.raises(ValueError, match="draws come from a file or from a distribution, found file and skew"):
        DrawsOrigin(file="f.csv", skew=2.0)
