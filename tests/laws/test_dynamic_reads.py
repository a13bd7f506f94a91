"""Laws of dynamic reads: nobody acts on a draw before its reveal, and what happens obeys the same laws as ever."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from dynamic_cases import chosen_flags, machine, on_demand, plan_of, play
from dynamic_strategies import graphs, machines, origins, seeds, updating
from hypothesis import assume, given
from hypothesis import strategies as st
from replays import rows

from simulator.bounds import Limits, Precedence, Timing, mean_step
from simulator.cost import durations_ns
from simulator.draws import Draws, drawn
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.metrics import summarise
from simulator.plan import COMPUTE, Actions, Plan
from simulator.referee import RankPlan, check_plan, check_trace
from simulator.scenario import DrawsOrigin


def recorded(plan: Plan, trace) -> Plan:  # type: ignore[no-untyped-def]
    columns = trace.issued[0].whole()
    steps = Actions.from_columns(*(columns[name].tolist() for name in ("kind", "a", "b", "c")))
    return replace(plan, actions=steps, repeats=1)


@given(updating, origins, seeds, machines(), st.integers(0, 4), st.booleans(), st.booleans())
def test_the_referee_agrees_with_the_engine(
    graph: Graph, origin: DrawsOrigin, seed: int, hardware: Hardware, keep: int, looks: bool, contended: bool
) -> None:
    """A runtime that brings what is chosen, and its record as a fixed plan; streams may share the device."""
    if contended:
        graph = replace(graph, ops=tuple(replace(op, stream=i % 2) for i, op in enumerate(graph.ops)))
    draws = drawn(graph, hardware, origin, seed)
    plan = plan_of(graph, on_demand(graph, keep), hardware, looks=looks)
    trace = play(graph, plan, hardware, draws)
    assert trace.status == "ok"
    check_trace(graph, hardware, [RankPlan(plan, draws)], trace)
    record = recorded(plan, trace)
    check_plan(graph, hardware, record, draws=draws)
    again = play(graph, record, hardware, draws)
    check_trace(graph, hardware, [RankPlan(record, draws)], again)


@given(updating, origins, seeds, machines(), st.integers(0, 4))
def test_a_host_that_selects_ahead_of_the_clock_changes_nothing(
    graph: Graph, origin: DrawsOrigin, seed: int, hardware: Hardware, keep: int
) -> None:
    """What is found is paid at the same steps, whether or not the host keeps to the clock's time."""
    draws = drawn(graph, hardware, origin, seed)
    plans = (plan_of(graph, on_demand(graph, keep), hardware, looks=looks) for looks in (True, False))
    looks, does_not = (play(graph, plan, hardware, draws) for plan in plans)
    assert rows(looks.spans) == rows(does_not.spans)
    assert rows(looks.waits) == rows(does_not.waits)


@given(graphs, origins, seeds, machines())
def test_what_is_selected_is_paid_once(graph: Graph, origin: DrawsOrigin, seed: int, hardware: Hardware) -> None:
    """A run ends later by at most the price of all that was chosen, and never earlier; copies share no link."""
    assume(hardware.links["h2d"].channels == 1)
    draws = drawn(graph, hardware, origin, seed)
    price = hardware.host.reactive.select_ns
    free = hardware.host.reactive.model_copy(update={"select_ns": 0})
    cheap = hardware.model_copy(update={"host": hardware.host.model_copy(update={"reactive": free})})
    plan = plan_of(graph, on_demand(graph), hardware)
    ends = [max(s["end_ns"] for s in rows(play(graph, plan, machine, draws).spans)) for machine in (cheap, hardware)]
    chosen = sum(len(draws.chosen(op, step)) for op in draws.chosen_flags for step in range(graph.steps))
    assert 0 <= ends[1] - ends[0] <= price * chosen


@given(graphs, origins, seeds, machines(), st.data())
def test_two_runs_that_differ_in_a_draw_issue_the_same_steps_until_its_reveal(
    graph: Graph, origin: DrawsOrigin, seed: int, hardware: Hardware, data: st.DataObject
) -> None:
    """And at the same times: nothing of a draw shows before the host asks for it."""
    draws = drawn(graph, hardware, origin, seed)
    op = data.draw(st.sampled_from(sorted(draws.chosen_flags)))
    step = data.draw(st.integers(0, graph.steps - 1))
    flags = draws.chosen_flags[op].copy()
    flags[step] = ~flags[step]
    flags[step, 0] = True  # something is chosen
    other = replace(draws, chosen_flags={**draws.chosen_flags, op: flags})
    keep = data.draw(st.integers(0, 3))
    asked: list[tuple[int, int]] = []
    one, two = (
        play(graph, plan_of(graph, on_demand(graph, keep, asked), hardware), hardware, d) for d in (draws, other)
    )
    until = [issued for what, issued in asked[: len(asked) // 2] if what == op][step]
    assert rows(one.issued[0])[:until] == rows(two.issued[0])[:until]
    times = [[(s["issue"], s["start_ns"]) for s in rows(t.spans) if s["issue"] < until] for t in (one, two)]
    assert times[0] == times[1]


@given(updating, origins, seeds, machines())
def test_a_fixed_plan_brings_all_and_takes_the_time_of_the_draw(
    graph: Graph, origin: DrawsOrigin, seed: int, hardware: Hardware
) -> None:
    """Its lap is counted once, but for what it reads dynamically, and runs as if each lap were counted anew."""
    everything = [list(range(len(op.dynamic.candidates))) for op in graph.ops if op.dynamic]
    one_step = replace(graph, steps=1)
    names = [op.name for op in graph.ops if op.dynamic]
    all_flags = chosen_flags(one_step, {name: [one] for name, one in zip(names, everything, strict=True)})
    full = plan_of(graph, on_demand(one_step), hardware)
    record = recorded(full, play(one_step, full, hardware, Draws(one_step, hardware, 0, all_flags)))
    plan = replace(record, repeats=graph.steps)
    draws = drawn(graph, hardware, origin, seed)
    check_plan(graph, hardware, plan, draws=draws)
    trace = play(graph, plan, hardware, draws)
    check_trace(graph, hardware, [RankPlan(plan, draws)], trace)
    unrolled = replace(
        plan, actions=Actions.from_columns(*zip(*list(record.fixed.codes()) * graph.steps, strict=True)), repeats=1
    )
    anew = play(graph, unrolled, hardware, draws)
    assert [rows(t) for t in (trace.spans, trace.waits, trace.residencies)] == [
        rows(t) for t in (anew.spans, anew.waits, anew.residencies)
    ]
    took = [(s["item"], s["end_ns"] - s["start_ns"]) for s in rows(trace.spans) if s["kind"] == COMPUTE]
    for op in draws.chosen_flags:
        assert [ns for item, ns in took if item == op] == draws.durations_ns(op)
    assert trace.spans.whole()["end_ns"].max() >= graph.steps * mean_step(graph, hardware, plan.home).ns
    last = draws.durations_ns(len(graph.ops) - 1)
    shorter_ns = max(0, last[-2] - last[-1]) if graph.steps > 1 else 0
    times = draws.step_durations_ns(durations_ns(graph, hardware), graph.steps - 1)
    order = replace(Timing.alone(Precedence.of(graph.certain), times), shorter_ns=shorter_ns)
    assert Limits(order, hardware, plan.home).step(math.inf).ns <= summarise(graph, hardware, trace)["step_ns"]


@given(updating, origins, seeds)
def test_draws_follow_from_graph_origin_and_seed(graph: Graph, origin: DrawsOrigin, seed: int) -> None:
    """Each op reads the union of what its samples choose: between `each`, and `samples` times as many."""
    hardware = machine()
    one, two = (drawn(graph, hardware, origin, seed) for _ in range(2))
    for op, flags in one.chosen_flags.items():
        dynamic = graph.ops[op].dynamic
        assert dynamic is not None
        assert np.array_equal(flags, two.chosen_flags[op])
        for step in range(graph.steps):
            chosen = one.chosen(op, step)
            assert dynamic.each <= len(chosen) <= min(len(dynamic.candidates), dynamic.samples * dynamic.each)
            assert set(chosen) <= set(dynamic.candidates)
            assert one.chosen_bytes(op)[step] == sum(graph.tensors[t].size_bytes for t in chosen)
            assert one.predicted(op, step, 1.0) == chosen
            assert len(one.predicted(op, step, 0.5)) <= len(chosen)
            if origin.stickiness == 1.0:
                assert chosen == one.chosen(op, 0)
