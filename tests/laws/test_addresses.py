"""Laws of addresses, on random graphs, machines and plans; the referee holds each trace against its own, too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from rank_strategies import jobs
from stories import graph, machine, play
from strategies import Case, allocators, cases

from simulator import engine
from simulator.cost import durations_ns
from simulator.errors import CapacityError
from simulator.graph import Job
from simulator.hardware import Allocator, Hardware
from simulator.offsets import offsets
from simulator.referee import RankPlan, check_trace
from simulator.trace import CAUSES, Trace


def on(hardware: Hardware, allocator: Allocator) -> Hardware:
    return hardware.model_copy(update={"allocator": allocator})


def run(case: Case, allocator: str, hardware: Hardware, spare: int = 0) -> Trace:
    program = engine.Program(case.graph, case.plan, durations_ns(case.graph, hardware), allocator=allocator)
    budget = case.budget_bytes + spare
    trace = engine.run([program], hardware, budget_bytes=budget)
    check_trace(case.graph, hardware, [RankPlan(case.plan, None, allocator)], trace, budget)
    return trace


def happened(trace: Trace) -> list[list[list[int]]]:
    return [[v.tolist() for v in t.whole().values()] for t in (trace.spans, trace.waits, trace.residencies)]


def count(trace: Trace) -> int:
    return int(trace.compactions.whole()["is_remap"].sum())


@given(cases(streams=2), allocators)
def test_best_fit_is_ideal_while_nothing_is_compacted(case, allocator):
    hardware = on(case.hardware, allocator)
    ideal, fit = run(case, "ideal", hardware), run(case, "best_fit", hardware)
    waited = CAUSES.index("capacity") in fit.waits.whole()["cause"].tolist()
    if allocator.compaction is None:
        event("waits for holes" if waited else "no wait for room")
        return
    event(f"{min(count(fit), 3)} compactions")
    assert fit.status == ideal.status
    if not len(fit.compactions):
        assert happened(fit) == happened(ideal)


@given(cases(streams=2), allocators, st.integers(0, 40))
def test_waits_for_compaction_are_the_time_from_asking_to_the_end(case, allocator, spare):
    trace = run(case, "best_fit", on(case.hardware, allocator), spare)
    w, found = trace.waits.whole(), trace.compactions.whole()
    mine = w["cause"] == CAUSES.index("compaction")
    for stream in set(w["stream"].tolist()):
        took = (w["end_ns"] - w["start_ns"])[mine & (w["stream"] == stream)].sum()
        assert took <= (found["end_ns"] - found["asked_ns"]).sum()
    if trace.status == "ok" and len(found["asked_ns"]):
        event("compacted")


@given(cases(streams=2), allocators, st.integers(0, 60))
def test_a_caching_allocator_reserves_what_it_gives_out_and_no_more_than_there_is(case, allocator, spare):
    try:
        trace = run(case, "caching", on(case.hardware, allocator), spare)
    except CapacityError:
        event("homes do not fit")
        return
    event(f"{trace.status}, {min(count(trace), 2)} compactions, {min(len(trace.compactions), 2)} stops")
    live = most = 0
    for delta in trace.addresses.whole()["delta_bytes"].tolist():
        live += delta
        most = max(most, live)
    assert most <= trace.reserved.whole()["reserved_bytes"].max(initial=0)


@given(cases(streams=2), st.none() | st.integers(0, 400))
def test_fixed_offsets_never_overlap_and_span_no_less_than_what_is_live(case, spare):
    room = None if spare is None else case.budget_bytes + spare
    layout = offsets(case.graph, case.plan, 0, room)
    assert layout.live_bytes <= layout.span_bytes
    if room is not None and layout.span_bytes > room:
        event("does not fit")
        assert layout.span_bytes <= offsets(case.graph, case.plan, 0).span_bytes
    placed = layout.tenancies
    stays = [*zip(placed.owner, placed.first, placed.last, strict=True)]
    for i, (one, first, last) in enumerate(stays):
        for other, start, end in stays[:i]:
            (low, size), (at, extent) = layout.ranges[one], layout.ranges[other]
            meets = first <= end and start <= last and one != other
            assert not meets or low + size <= at or at + extent <= low


@given(cases(streams=2), st.integers(0, 40))
def test_a_plan_whose_fixed_offsets_fit_never_blocks_and_compacts_nothing(case, spare):
    layout = offsets(case.graph, case.plan, 0, case.budget_bytes + spare)
    if layout.span_bytes > case.budget_bytes + spare:
        event("does not fit")
        with pytest.raises(CapacityError) as caught:
            run(case, "fixed", case.hardware, spare)
        assert caught.value.report.demand_bytes == layout.span_bytes
        return
    event("fits with holes" if layout.span_bytes > layout.live_bytes else "fits as tightly as it can")
    trace = run(case, "fixed", case.hardware, spare)
    assert trace.status == "ok"
    assert not len(trace.compactions)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 6))
def test_alike_places_that_leave_in_order_wait_for_ranges_as_for_bytes_and_less_in_a_larger_span(times, ranges):
    g = graph(
        ", ".join(f"t{i} 30" for i in range(len(times))),
        *(f"f{i}: -> t{i}, {ns} ns" for i, ns in enumerate(times)),
    )
    text = "; ".join(f"compute f{i}; copy t{i} hbm ddr; detach t{i} hbm" for i in range(len(times)))
    text += "; " + "; ".join(f"detach t{i} ddr" for i in range(len(times)))
    hardware = [machine(f"{30 * count} B") for count in (ranges, ranges + 1)]
    tighter, fixed = (play(one, g, text, allocator="fixed") for one in hardware)
    ideal = play(hardware[1], g, text)
    took, longer = (trace.spans.whole()["end_ns"].max() for trace in (fixed, tighter))
    event("waits less" if took < longer else "as long")
    assert happened(fixed) == happened(ideal)
    assert took <= longer


@given(jobs(), allocators, st.sampled_from(["best_fit", "caching", "fixed"]))
def test_each_rank_has_addresses_of_its_own_folded_or_not(case, allocator, kind):
    known, hardware = {}, on(case[1], allocator)
    programs = [known.setdefault(id(one), replace(one, allocator=kind)) for one in case[0]]
    try:
        whole = engine.run(programs, hardware)
    except CapacityError:
        event("homes do not fit")
        return
    event(f"{whole.status}, {min(count(whole), 1)} compacted")
    job = _job(programs)
    check_trace(job, hardware, [RankPlan(one.plan, None, kind) for one in programs], whole)
    if not engine.folding_obstacle(programs, hardware):
        folded = engine.run(programs, hardware, fold="always")
        for mine, alone in zip(folded.by_rank(), whole.by_rank(), strict=True):
            for name in ("spans", "addresses", "reserved", "compactions"):
                parts = (getattr(trace, name).whole() for trace in (mine, alone))
                assert [*zip(*(v.tolist() for v in next(parts).values()), strict=True)] == [
                    *zip(*(v.tolist() for v in next(parts).values()), strict=True)
                ]


def _job(programs):
    graphs = list({id(one.graph): one.graph for one in programs}.values())
    of = tuple(next(i for i, graph in enumerate(graphs) if graph is one.graph) for one in programs)
    return Job("random", tuple(graphs), of, tuple(f"g{i}" for i in range(len(graphs))))
