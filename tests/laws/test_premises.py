"""Laws that hold under a premise, which each of them states; outside it anomalies are real."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from replays import computes, issued, makespan_ns, reactive, recorded, rows, run, transfers
from strategies import HBM, Case, cases, graphs, machines, scaled, with_host, with_links

from simulator.cost import durations_ns
from simulator.hardware import FixedHost, ReactiveHost
from simulator.lifetime import Lifetimes, live_bytes
from simulator.plan import COMPUTE, NOWHERE, Actions, Plan

max_plus = cases(("fifo",), ample=True, buses=False, one_channel=True)
"""Fixed plans, one in-order channel per link, no bus, and no wait for room: all times are maxima of sums."""


@st.composite
def resident_cases(draw) -> Case:
    """Everything lives in HBM and is detached after its last use, outputs when the step ends; the host is free."""
    graph, hardware = draw(graphs()), draw(machines(host=False))
    home = tuple(HBM if t in graph.inputs else NOWHERE for t in range(len(graph.tensors)))
    steps, dead = Actions(), Lifetimes(graph).dead_after
    for op in range(len(graph.ops)):
        steps.compute(op)
        for t in dead[op]:
            steps.detach(t, HBM)
    for t in graph.outputs:
        if not graph.tensors[t].persistent:
            steps.detach(t, HBM)
    plan = Plan("resident", hardware.tier_names, home, steps, graph.steps)
    return Case(graph, hardware, plan, int(live_bytes(graph).max()), ())


@given(resident_cases())
def test_everything_resident_moves_nothing_and_peaks_at_the_liveness_peak(case: Case):
    """The budget is the peak of what is live by the order of the ops alone, and it is reached; the host is free."""
    trace = run(case)
    assert trace.status == "ok", trace.blocked
    assert not transfers(trace)
    used = peak = 0
    for row in rows(trace.residencies):
        used += row["delta_bytes"]
        peak = max(peak, used)
    assert peak == case.budget_bytes
    assert makespan_ns(trace) == sum(durations_ns(case.graph, case.hardware)) * case.graph.steps


@given(cases(ample=True, buses=False, host=False))
def test_with_ample_memory_endless_bandwidth_and_a_free_host_nothing_stalls(case: Case):
    """One rank, one stream, no latency."""
    endless = with_links(case.hardware, bandwidth_bytes_per_s=math.inf, latency_ns=0)
    trace = run(case, endless)
    assert trace.status == "ok", trace.blocked
    assert not rows(trace.waits)
    alone = durations_ns(case.graph, endless)
    assert makespan_ns(trace) == sum(alone[a] for kind, a, _, _ in issued(case) if kind == COMPUTE)


@given(max_plus, st.sampled_from([1, 2, 3, 10, math.inf]), st.data())
def test_more_bandwidth_never_hurts(case: Case, factor: float, data: st.DataObject):
    """Fixed plan, one in-order channel per link, no bus, no wait for room."""
    chosen = data.draw(st.sampled_from(sorted(case.hardware.links)))
    link = case.hardware.links[chosen]
    faster = link.model_copy(update={"bandwidth_bytes_per_s": link.bandwidth_bytes_per_s * factor})
    hardware = case.hardware.model_copy(update={"links": {**case.hardware.links, chosen: faster}})
    slow, fast = (sorted(rows(t.spans), key=lambda s: s["issue"]) for t in (run(case), run(case, hardware)))
    assert len(slow) == len(fast)
    assert all(a["end_ns"] >= b["end_ns"] for a, b in zip(slow, fast, strict=True))


@given(max_plus)
def test_a_free_host_is_never_slower(case: Case):
    """Fixed plan, one in-order channel per link, no bus, no wait for room."""
    free = with_host(case.hardware, fixed=FixedHost(), queue_depth=1024)
    slow, fast = (sorted(rows(t.spans), key=lambda s: s["issue"]) for t in (run(case), run(case, free)))
    assert len(slow) == len(fast)
    assert all(a["end_ns"] >= b["end_ns"] for a, b in zip(slow, fast, strict=True))


@given(max_plus, st.lists(st.integers(0, 9), min_size=5, max_size=5))
def test_a_recorded_reactive_run_replayed_with_a_free_host_is_never_slower(case: Case, costs: list[int]):
    """One in-order channel per link, no bus, no wait for room."""
    names = ("inspect_ns", "compute_ns", "copy_ns", "detach_ns", "sync_ns")
    paid = with_host(case.hardware, reactive=ReactiveHost().model_copy(update=dict(zip(names, costs, strict=True))))
    plan = reactive(case)
    decided = run(case, paid, plan)
    free = with_host(case.hardware, fixed=FixedHost(), queue_depth=1024)
    replayed = run(case, free, recorded(plan, decided))
    assert decided.status == replayed.status == "ok"
    assert makespan_ns(replayed) <= makespan_ns(decided)


@given(cases(ample=True), st.sampled_from([0.5, 2, 7, math.inf]))
def test_what_a_fixed_plan_moves_does_not_depend_on_time(case: Case, factor: float):
    """Bytes over each link, on any machine of that shape, however fast."""
    links = {
        n: k.model_copy(update={"bandwidth_bytes_per_s": k.bandwidth_bytes_per_s * factor})
        for n, k in case.hardware.links.items()
    }
    other = case.hardware.model_copy(update={"links": links})
    ops = tuple(replace(op, duration_ns=(op.duration_ns or 0) * 3 + 1) for op in case.graph.ops)
    longer = replace(case, graph=replace(case.graph, ops=ops))
    moved = [[(s["issue"], s["track"], s["item"]) for s in transfers(t)] for t in (run(case), run(longer, other))]
    assert moved[0] == moved[1]


@given(cases(flat=True), st.sampled_from([2, 4, 1024, 2**20]))
def test_multiplying_all_bytes_and_rates_by_a_power_of_two_changes_no_time(case: Case, factor: int):
    """Flat efficiency, ideal allocator."""
    one, other = run(case), run(scaled(case, factor))
    assert one.status == other.status
    assert rows(one.spans) == rows(other.spans)
    assert rows(one.waits) == rows(other.waits)
    grown = [{**row, "delta_bytes": row["delta_bytes"] * factor} for row in rows(one.residencies)]
    assert grown == rows(other.residencies)


@given(cases(ample=True))
def test_ample_memory_means_no_wait_for_room(case: Case):
    """All tiers hold everything at once."""
    trace = run(case)
    assert trace.status == "ok", trace.blocked
    assert not [w for w in rows(trace.waits) if w["cause"] == 0]
    assert len(computes(trace)) == sum(kind == COMPUTE for kind, *_ in issued(case))
