"""Ops that update what they have chosen: exact timelines, bytes, draws, and what is refused (semantics 15)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from documents import refusal
from dynamic_cases import DDR, HBM, chosen_flags, machine, moe, on_demand, plan_of, play
from policy_problems import replay
from replays import rows

import simulator as hosim
from simulator import engine
from simulator.builders.replicas import spread
from simulator.cost import durations_ns
from simulator.draws import Draws, Routing, drawn, popularity
from simulator.engine.replay import why_not
from simulator.errors import ScopeError
from simulator.formats import graph_jsonl
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, DETACH, FREE, Actions, Plan, View
from simulator.policies import POLICIES, Problem
from simulator.referee import RankPlan, check_plan, check_trace
from simulator.scenario import DrawsOrigin, Switches
from simulator.workload import Parallel

pytestmark = pytest.mark.usefixtures("quick_plans")

GRAPH, MACHINE = moe(1, 3, steps=2, updates=True), machine()
ROUTE, SHARED, READ, UPDATE = range(4)
EXPERTS = GRAPH.ops[UPDATE].writes
DRAWS = Draws(GRAPH, MACHINE, 0, chosen_flags(GRAPH, {"L0/experts": [[1], [2]], "L0/update": [[1], [2]]}))


def timeline(graph: Graph, plan: Plan, draws: Draws, hardware: Hardware = MACHINE) -> list[str]:
    """What runs when, judged by the referee."""
    trace = play(graph, plan, hardware, draws)
    check_trace(graph, hardware, [RankPlan(plan, draws)], trace)
    names = {COMPUTE: [op.name for op in graph.ops], COPY: [tensor.name for tensor in graph.tensors]}
    tracks = {COMPUTE: [""] * 9, COPY: [f"{link} " for link in hardware.link_names]}
    told = ((s["start_ns"], s["end_ns"], tracks[s["kind"]][s["track"]], names[s["kind"]][s["item"]])
            for s in sorted(rows(trace.spans), key=lambda s: (s["start_ns"], s["issue"])))  # fmt: skip
    return [f"{start}-{end} {link}{name}" for start, end, link, name in told]


def test_a_runtime_copies_home_what_was_chosen_alone() -> None:
    """Expert 1 (11 B) comes, is read and written, and goes; the next step brings expert 2 while that goes."""
    assert timeline(GRAPH, plan_of(GRAPH, on_demand(GRAPH), MACHINE), DRAWS) == [
        "0-5 L0/route", "5-16 h2d L0/expert.1", "5-8 L0/shared", "16-17 L0/experts", "17-18 L0/update",
        "18-29 d2h L0/expert.1", "18-23 L0/route", "23-35 h2d L0/expert.2", "23-26 L0/shared", "35-36 L0/experts",
        "36-37 L0/update", "37-49 d2h L0/expert.2",
    ]  # fmt: skip


def all_home(steps: int) -> Plan:
    """A fixed plan, which brings all candidates and copies all home."""
    codes = [(COPY, t, DDR, HBM) for t in EXPERTS] + [(COMPUTE, op, 0, 0) for op in range(4)]
    codes += [code for t in EXPERTS for code in ((COPY, t, HBM, DDR), (DETACH, t, HBM, 0))]
    codes += [(DETACH, t, HBM, 0) for op in GRAPH.ops[:3] for t in op.writes]
    return replace(plan_of(GRAPH, Actions.from_columns(*zip(*codes, strict=True)), MACHINE), repeats=steps)


def test_a_fixed_plan_copies_all_home_and_what_was_not_chosen_waits_for_no_write() -> None:
    """Expert 0 goes home as the update starts, at 22 and 68; expert 2 is copied over its valid copy, and is in time."""
    plan = all_home(2)
    check_plan(GRAPH, MACHINE, plan)
    assert timeline(GRAPH, plan, DRAWS) == [
        "0-10 h2d L0/expert.0", "0-5 L0/route", "5-8 L0/shared", "10-21 h2d L0/expert.1", "21-33 h2d L0/expert.2",
        "21-22 L0/experts", "22-23 L0/update", "22-32 d2h L0/expert.0", "23-28 L0/route", "28-31 L0/shared",
        "32-43 d2h L0/expert.1", "33-43 h2d L0/expert.0", "43-55 d2h L0/expert.2", "43-54 h2d L0/expert.1",
        "55-67 h2d L0/expert.2", "67-68 L0/experts", "68-69 L0/update", "68-78 d2h L0/expert.0",
        "78-89 d2h L0/expert.1", "89-101 d2h L0/expert.2",
    ]  # fmt: skip


def test_a_copy_of_what_was_chosen_waits_for_the_write() -> None:
    """With expert 0 chosen, its copy home starts once the update has ended, at 12."""
    one = replace(GRAPH, steps=1)
    draws = Draws(one, MACHINE, 0, chosen_flags(one, {"L0/experts": [[0]], "L0/update": [[0]]}))
    found = timeline(one, all_home(1), draws)
    assert found[4:7] == ["10-11 L0/experts", "11-12 L0/update", "12-22 d2h L0/expert.0"]


@pytest.mark.parametrize(("tensor", "state"), [(1, "stale"), (0, "valid")])
def test_only_copies_of_what_was_chosen_become_stale(tensor: int, state: str) -> None:
    seen = []

    def issue(view: View):  # type: ignore[no-untyped-def]
        for t in EXPERTS:
            yield COPY, t, DDR, HBM
        for op in range(4):
            yield COMPUTE, op, 0, 0
        seen.append(view.place(EXPERTS[tensor], DDR))
        for t in EXPERTS:
            yield COPY, t, HBM, DDR
            yield DETACH, t, HBM, 0
        for op in GRAPH.ops[:3]:
            for t in op.writes:
                yield DETACH, t, HBM, 0

    one = replace(GRAPH, steps=1)
    draws = Draws(one, MACHINE, 0, chosen_flags(one, {"L0/experts": [[1]], "L0/update": [[1]]}))
    timeline(one, plan_of(one, issue, MACHINE), draws)
    assert seen == [state]


def test_the_host_pays_to_enter_what_changed() -> None:
    """One chosen expert goes home a step; the host, which sees at 5 which, issues that at 25, and the next op then."""
    reactive = MACHINE.host.reactive.model_copy(update={"update_ns": 20})
    paying = MACHINE.model_copy(update={"host": MACHINE.host.model_copy(update={"reactive": reactive})})
    found = timeline(GRAPH, plan_of(GRAPH, on_demand(GRAPH), paying), DRAWS, paying)
    assert found[5:8] == ["25-36 d2h L0/expert.1", "25-30 L0/route", "30-42 h2d L0/expert.2"]


def test_what_is_chosen_is_read_and_written() -> None:
    """23 B at 1 GB/s, twice: 46 ns; of the reader, once."""
    tiers = {"hbm": {"capacity": "inf", "bandwidth": "1 GB/s"}}
    slow = Hardware.model_validate(
        {"name": "slow", "compute_tier": "hbm", "compute": {"peak": {"bf16": "1 TFLOP/s"}}, "tiers": tiers}
    )
    flags = chosen_flags(GRAPH, {"L0/experts": [[1, 2], [0]], "L0/update": [[1, 2], [0]]})
    draws = Draws(GRAPH, slow, 0, flags)
    assert [draws.durations_ns(op) for op in (READ, UPDATE)] == [[23, 10], [46, 20]]
    assert durations_ns(GRAPH, slow)[READ:] == [11, 22]  # one of three is expected, of 11 B on average


def test_an_op_updates_what_the_op_before_it_has_chosen() -> None:
    graph = moe(2, 8, samples=2, steps=50, readers=2, updates=True)
    origin = DrawsOrigin(distribution="zipf", skew=1.1)
    flags, shares = drawn(graph, MACHINE, origin, 3).chosen_flags, popularity(graph, origin, 3)
    by_name = {op.name: i for i, op in enumerate(graph.ops)}
    for layer in range(2):
        first, second, update = (by_name[f"L{layer}/{name}"] for name in ("experts", "experts.1", "update"))
        assert np.array_equal(flags[update], flags[second])
        assert not np.array_equal(flags[update], flags[first])
        assert shares[update] == shares[second]
    plain = moe(2, 8, samples=2, steps=50, readers=2)
    same = drawn(plain, MACHINE, origin, 3).chosen_flags
    assert all(np.array_equal(flags[op], same[op]) for op in same)


def test_a_file_of_choices_names_the_op_that_chooses() -> None:
    origin = Routing({(0, "L0/experts"): (1,), (1, "L0/experts"): (2,)}, "r.csv")
    draws = drawn(GRAPH, MACHINE, origin)
    assert [draws.chosen(UPDATE, step) for step in (0, 1)] == [(EXPERTS[1],), (EXPERTS[2],)]
    assert popularity(GRAPH, origin)[UPDATE] == popularity(GRAPH, origin)[READ]


def test_it_survives_its_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    graph_jsonl.write(GRAPH, tmp_path / "g.jsonl")
    text = (tmp_path / "g.jsonl").read_text()
    assert text.count('"updates":true') == 1
    assert graph_jsonl.read(tmp_path / "g.jsonl") == replace(GRAPH, name="moe")


@pytest.mark.parametrize(
    ("updates", "writes", "message"),
    [
        (True, ["a"], "and also among its writes, found 'b', only read; correct the lists, or updates"),
        (False, ["a", "b"], "and not among its writes, found 'a', written; correct the lists, or updates"),
    ],
)
def test_all_candidates_are_written_or_none(updates: bool, writes: list[str], message: str) -> None:
    b = GraphBuilder("g")
    for name in "ab":
        b.tensor(name, 4, persistent=True)
    b.op("r")
    dynamic = b.dynamic_reads("u", "r", ["a", "b"], updates=updates)
    assert f"op 'u': a candidate is among the op's reads, {message}" in refusal(
        b.op, "u", ["a", "b"], writes, dynamic=dynamic
    )


def problem(graph: Graph) -> Problem:
    homes = tuple(DDR if tensor.kind == "expert" else FREE for tensor in graph.tensors)
    return Problem(graph, MACHINE, homes, 1000, durations_ns(graph, MACHINE), lambda of, plan: replay(of, plan, None))


def test_policies_that_keep_what_is_chosen_beyond_a_step_refuse_it_by_name() -> None:
    with pytest.raises(ScopeError) as caught:
        POLICIES["hybrid"].plan(problem(GRAPH), {})
    assert "a candidate persists, and no op writes it, found the candidate 'L0/expert." in str(caught.value)
    certain = replace(GRAPH.ops[SHARED], name="certain", reads=EXPERTS[:1], writes=EXPERTS[:1])
    graph = replace(GRAPH, ops=(*GRAPH.ops, certain))
    with pytest.raises(ScopeError):
        POLICIES["reactive"].plan(problem(graph), {"dynamic": "on_demand"})
    assert EXPERTS[0] not in graph.updated


def test_the_compiled_engine_leaves_it_to_the_reference_by_name() -> None:
    program = engine.Program(GRAPH, all_home(2), durations_ns(GRAPH, MACHINE), draws=DRAWS)
    if engine.replay.is_built():
        assert why_not([program], MACHINE, Switches()) == "ops update their choices"
        assert why_not([replace(program, draws=None)], MACHINE, Switches()) == ""


def test_replicas_that_update_apart_are_refused() -> None:
    found = refusal(spread, GRAPH, Parallel(ranks="all", data=2), "workload w")
    assert "replicas all update the same tensors, found op 'L0/update', which updates its draws" in found


def test_a_scenario_runs_it_under_runtimes_and_compiled_plans(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """On demand moves home what was chosen; all others all of it. Nobody is below the bound."""
    graph = moe(2, 8, size=10**6, samples=2, steps=4, updates=True)
    graph_jsonl.write(graph, tmp_path / "g.jsonl")
    (tmp_path / "w.yaml").write_text("schema: hosim/workload/1\nname: w\ngraph: g.jsonl\n")
    (tmp_path / "s.yaml").write_text(
        "schema: hosim/scenario/1\nname: s\nhardware: h100_sxm\nworkload: w.yaml\nhomes: {expert: ddr}\n"
        "draws: {distribution: zipf, skew: 1.1}\npolicies:\n- {policy: static}\n- {policy: reactive}\n"
        "- {policy: reactive, label: on demand, options: {dynamic: on_demand, evict: lru}}\n- {policy: hybrid}\n"
    )
    table = hosim.run(tmp_path / "s.yaml", set={"workload.steps": 4, "tiers.hbm.capacity": "20 MB"}).summary
    assert table["status"].tolist() == ["ok", "ok", "ok", "refused"]
    total, out = sum(t.size_bytes for t in graph.tensors if t.kind == "expert"), table["moved_d2h_bytes"].tolist()
    assert out[:2] == [total, total]
    assert 0 < out[2] < total / 2
    assert (table["step_ns"] >= table["bound_ns"])[:3].all()
