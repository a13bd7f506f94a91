"""No run is faster than the bound where tiers below are scarce as well, and there are runs that meet it."""

from __future__ import annotations

import pytest
from bounding import bound
from hypothesis import event, given
from hypothesis import strategies as st
from policy_problems import DDR, HBM, machine, problem, replay
from replays import computes, run
from stories import peak_bytes
from strategies import Case, cases, rates, tighten

from simulator.bounds import Bound
from simulator.cost import durations_ns
from simulator.cost.service import ceil_div
from simulator.errors import CapacityError
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.hardware import Hardware
from simulator.lifetime import working_set_bytes
from simulator.metrics import summarise
from simulator.plan import DETACH, FREE, NOWHERE
from simulator.policies import POLICIES, Problem

SSD = 2
durations = st.integers(0, 9)
near = st.sampled_from(["1 GB/s", "3 GB/s", "inf", "inf"])
far = st.sampled_from(["0.25 GB/s", "0.7 GB/s", "1 GB/s"])


def said(found: Bound, hardware: Hardware, step_ns: int, ample: Bound) -> str:
    """What a case is about: whether a full tier sets the bound, and whether it is met."""
    sets = "a full tier" if found.ns > ample.ns else found.kind.split()[0]
    return f"{'met' if found.ns == step_ns else 'not met'}, {sets} of {len(hardware.tiers)}"


def endless(hardware: Hardware) -> Hardware:
    return tighten(hardware, [10**9] * len(hardware.tiers))


@given(cases(max_steps=2), st.booleans())
def test_no_plan_at_random_is_faster_than_the_bound_of_tiers_that_just_hold_it(case: Case, all_are_free: bool):
    """A run that peaks at some bytes in each tier is a plan for a machine that has no more."""
    trace = run(case)
    if trace.status != "ok":
        return
    moved = {tensor for kind, tensor, *_ in case.plan.actions if kind == DETACH}
    may_be_free = [HBM, DDR, SSD] if all_are_free else [HBM]
    homes = [FREE if t in moved and home in may_be_free else home for t, home in enumerate(case.plan.home)]
    repeats = len(computes(trace)) > case.graph.steps * len(case.graph.ops)
    step_ns = summarise(case.graph, case.hardware, trace)["step_ns"]
    peaks = [peak_bytes(trace, tier) for tier in range(len(case.hardware.tiers))]
    alone = durations_ns(case.graph, case.hardware)
    machines = tighten(case.hardware, peaks), endless(case.hardware)
    found, ample = (bound(case.graph, m, alone, homes, peaks[HBM], may_repeat=repeats) for m in machines)
    event(said(found, case.hardware, step_ns, ample))
    assert found.ns <= step_ns


@st.composite
def chains(draw) -> tuple[Graph, dict[str, int]]:
    """What forward makes is read backwards; weights, some of them written, have a home anywhere or none."""
    builder, layers, home = GraphBuilder("chain"), draw(st.integers(2, 6)), {}
    for i in range(draw(st.integers(0, 2))):
        builder.tensor(f"w{i}", draw(st.integers(1, 20)), "weight", persistent=True)
        home[f"w{i}"] = draw(st.sampled_from([FREE, HBM, DDR, SSD]))
    weights = st.lists(st.sampled_from([*home]), max_size=1) if home else st.just([])
    for i in range(layers):
        builder.tensor(f"a{i}", draw(st.integers(1, 40)))
        read = draw(weights)
        written = read if draw(st.booleans()) else []
        builder.op(f"f{i}", read, [f"a{i}", *written], duration_ns=draw(durations), phase="forward")
    for i in reversed(range(layers)):
        builder.op(f"b{i}", [f"a{i}", *draw(weights)], [], duration_ns=draw(durations), phase="backward")
    return builder.build(steps=draw(st.integers(1, 3))), home


@st.composite
def towers(draw) -> Hardware:
    """HBM over DDR over an SSD, perhaps over a pool; perhaps a link past DDR, and a bus."""
    document = machine(d2h={"bandwidth": draw(near)}, h2d={"bandwidth": draw(near)}).model_dump(mode="json")
    document["tiers"]["ssd"] = {"capacity": "inf"}
    links = [("write", "ddr", "ssd"), ("read", "ssd", "ddr")]
    if draw(st.booleans()):
        document["tiers"]["pool"] = {"capacity": "inf"}
        links += [("farther", "ssd", "pool"), ("nearer", "pool", "ssd")]
    links += draw(st.sampled_from([[], [], [("direct", "ssd", "hbm")]]))
    document["links"] |= {name: {"source": a, "target": b, "bandwidth": draw(far)} for name, a, b in links}
    if draw(st.booleans()):
        ways = {"past": ("ssd", "hbm", ["read", "h2d"]), "away": ("hbm", "ssd", ["d2h", "write"])}
        for name in draw(st.lists(st.sampled_from(sorted(ways)), min_size=1, unique=True)):
            source, target, via = ways[name]
            chunk = f"{draw(st.integers(1, 40))} B"
            document["links"][name] = {"source": source, "target": target, "via": via, "chunk": chunk}
    if draw(st.booleans()):
        on_bus = draw(st.lists(st.sampled_from(sorted(document["links"])), min_size=1, max_size=4, unique=True))
        document["buses"] = {"bus": {"links": on_bus, "bandwidth": draw(rates)}}
    return Hardware.model_validate(document)


@st.composite
def scarce(draw) -> Problem:
    """A chain on a tower whose tiers, but for the last, have room for a few tensors beside what is at home there."""
    graph, home = draw(chains())
    hardware = draw(towers())
    size, largest = {t.name: t.size_bytes for t in graph.tensors}, max(t.size_bytes for t in graph.tensors)
    at_home = [sum(size[name] for name, tier in home.items() if tier == one) for one in (HBM, DDR, SSD)]
    budget = int(working_set_bytes(graph).max()) + at_home[HBM] + draw(st.integers(0, 9))
    rooms = [there + largest + draw(st.integers(0, 9)) for there in at_home]
    rooms = [*rooms, 10**9] if "pool" in hardware.tiers else [*rooms[:SSD], 10**9]
    return problem(graph, budget, home, tighten(hardware, rooms))


@pytest.mark.usefixtures("quick_plans")
@given(scarce(), st.sampled_from(["static", "reactive"]))
def test_no_policy_is_faster_than_the_bound_of_tiers_that_just_hold_its_plan(p: Problem, name: str):
    try:
        plan = POLICIES[name].plan(p)
    except CapacityError:
        event("does not fit")
        return
    done = replay(p, plan)
    if done.status != "ok":
        event(done.status)
        return
    peaks = [done.peak_bytes[tier] for tier in p.tiers]
    homes = p.known_homes
    hardware = tighten(p.hardware, peaks)
    found = bound(p.graph, hardware, p.durations_ns, homes, peaks[HBM])
    ample = bound(p.graph, endless(p.hardware), p.durations_ns, homes, peaks[HBM])
    event(said(found, hardware, done.step_ns, ample))
    assert found.ns <= done.step_ns


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("size", [40, 41, 333])
def test_a_plan_meets_the_bound_of_a_full_tier(size: int, steps: int):
    """HBM and DDR hold one tensor each: while ``h`` runs, of two one is on the SSD, before and behind it on its way."""
    builder = GraphBuilder("two")
    builder.tensor("a", size)
    builder.tensor("b", size)
    for name in "ab":
        builder.op(f"make {name}", [], [name], duration_ns=0, phase="forward")
    builder.op("h", [], [], duration_ns=7, workspace_bytes=size, phase="forward")
    for name in "ba":
        builder.op(f"read {name}", [name], [], duration_ns=3, phase="backward")
    document = machine(d2h={"bandwidth": "inf"}, h2d={"bandwidth": "inf"}, ddr=f"{size} B").model_dump(mode="json")
    document["tiers"]["ssd"] = {"capacity": "inf"}
    ends = {"write": ("ddr", "ssd", "0.7 GB/s"), "read": ("ssd", "ddr", "0.3 GB/s")}
    document["links"] |= {name: {"source": a, "target": b, "bandwidth": w} for name, (a, b, w) in ends.items()}
    p = problem(builder.build(steps=steps), size, hardware=Hardware.model_validate(document))
    homes = [NOWHERE] * 2
    found = bound(p.graph, p.hardware, p.durations_ns, homes, size)
    assert found.kind == "room at h"
    assert found.ns == ceil_div(size * 10, 7) + 7 + ceil_div(size * 10, 3) + 3
    assert replay(p, POLICIES["static"].plan(p)).step_ns == found.ns
