"""Laws of room and data: they hold for every valid plan on every machine."""

from __future__ import annotations

import math

from hypothesis import assume, given
from hypothesis import strategies as st
from replays import computes, issued, rows, run, stays, transfers
from strategies import Case, cases, leaves_unused

from simulator.bounds.capacity import GraphNeeds
from simulator.lifetime import live_bytes
from simulator.plan import COMPUTE, COPY, DETACH, FREE, NOWHERE
from simulator.scenario import Switches

switches = st.builds(Switches, copies_wait_for=st.sampled_from(["start", "end"]))
any_cases = cases(streams=2)


@given(any_cases, switches)
def test_bytes_are_conserved_in_every_tier(case: Case, chosen: Switches):
    """What is taken is freed once, by its size; at the end of a complete run only the homes are left."""
    trace = run(case, switches=chosen)
    held: dict[tuple[int, int], int] = {}
    for row in rows(trace.residencies):
        t, place = row["tensor"], (row["tensor"], row["tier"])
        size = case.graph.tensors[t].size_bytes if t >= 0 else case.graph.ops[-1 - t].workspace_bytes
        assert abs(row["delta_bytes"]) == size
        held[place] = held.get(place, 0) + row["delta_bytes"]
        assert held[place] >= 0
        assert held[place] <= size or t < 0
    if trace.status == "ok":
        homes = {
            (t, tier): case.graph.tensors[t].size_bytes
            for t, tier in enumerate(case.plan.home)
            if tier != NOWHERE and case.graph.tensors[t].persistent and case.graph.tensors[t].size_bytes
        }
        assert {place: size for place, size in held.items() if size} == homes


@given(any_cases, switches)
def test_a_tier_never_holds_more_than_its_capacity(case: Case, chosen: Switches):
    """0 <= used <= capacity after every single change."""
    used = [0] * len(case.plan.tiers)
    limits = [case.budget_bytes, *(t.usable_bytes for t in list(case.hardware.tiers.values())[1:])]
    for row in rows(run(case, switches=chosen).residencies):
        used[row["tier"]] += row["delta_bytes"]
        assert 0 <= used[row["tier"]] <= limits[row["tier"]]


@given(any_cases, switches)
def test_what_an_op_uses_is_resident_during_its_whole_span(case: Case, chosen: Switches):
    """Its reads, its writes and its workspace, in the compute tier."""
    trace = run(case, switches=chosen)
    stretches = stays(trace)
    for span in computes(trace):
        op = case.graph.ops[span["item"]]
        used = [t for t in (*op.reads, *op.writes) if case.graph.tensors[t].size_bytes]
        for t in [*used, -1 - span["item"]] if op.workspace_bytes else used:
            assert any(s[:2] == (t, 0) and s[2] <= span["start_ns"] and s[3] >= span["end_ns"] for s in stretches)


@given(any_cases, switches)
def test_a_copy_holds_both_places_from_start_to_end(case: Case, chosen: Switches):
    """The source until the target is valid, the target from the start."""
    trace = run(case, switches=chosen)
    stretches, codes = stays(trace), issued(case)
    for span in transfers(trace):
        if case.graph.tensors[span["item"]].size_bytes:
            for tier in codes[span["issue"]][2:]:
                at = (span["item"], tier)
                assert any(s[:2] == at and s[2] <= span["start_ns"] and s[3] >= span["end_ns"] for s in stretches)


@given(any_cases, switches)
def test_nothing_is_used_before_it_is_valid(case: Case, chosen: Switches):
    """A compute starts after the last copy or write, issued before it, of what it reads; a copy after its source's."""
    trace = run(case, switches=chosen)
    spans = {s["issue"]: s for s in rows(trace.spans)}
    valid_at: dict[tuple[int, int], float] = {(t, tier): 0 for t, tier in enumerate(case.plan.home) if tier != NOWHERE}
    for issue, (kind, a, b, c) in enumerate(issued(case)):
        start, end = (spans[issue]["start_ns"], spans[issue]["end_ns"]) if issue in spans else (math.inf, math.inf)
        if kind == COMPUTE:
            assert all(start >= valid_at[t, 0] for t in case.graph.ops[a].reads)
            valid_at |= {(t, 0): end for t in case.graph.ops[a].writes}
        elif kind == COPY:
            assert start >= valid_at[a, b]
            valid_at[a, c] = end


@given(any_cases, switches)
def test_steps_that_name_a_tensor_take_effect_in_issue_order(case: Case, chosen: Switches):
    """A compute that writes it waits for every earlier compute and copy of it, and every later one waits for that."""
    trace = run(case, switches=chosen)
    spans = {s["issue"]: s for s in rows(trace.spans)}
    last_end: dict[int, float] = {}
    last_write: dict[int, float] = {}
    for issue, (kind, a, _, _) in enumerate(issued(case)):
        if kind not in {COMPUTE, COPY}:
            continue
        start, end = (spans[issue]["start_ns"], spans[issue]["end_ns"]) if issue in spans else (math.inf, math.inf)
        op = case.graph.ops[a] if kind == COMPUTE else None
        for t in {*op.reads, *op.writes} if op else {a}:
            writes = op is not None and t in op.writes
            assert start >= (last_end if writes else last_write).get(t, 0)
            last_end[t] = max(last_end.get(t, 0), end)
            if writes:
                last_write[t] = end


@given(any_cases, switches)
def test_only_a_detach_frees_and_not_before_earlier_users_have_ended(case: Case, chosen: Switches):
    """The k-th free of a place is its k-th detach; computes and copies of the tensor issued before have ended."""
    trace = run(case, switches=chosen)
    spans = {s["issue"]: s for s in rows(trace.spans)}
    frees: dict[tuple[int, int], list[int]] = {}
    for row in rows(trace.residencies):
        if row["tensor"] >= 0 and row["delta_bytes"] < 0:
            frees.setdefault((row["tensor"], row["tier"]), []).append(row["time_ns"])
    last_end: dict[int, float] = {}
    for issue, (kind, a, b, _) in enumerate(issued(case)):
        if kind in {COMPUTE, COPY}:
            end = spans[issue]["end_ns"] if issue in spans else math.inf
            used = {*case.graph.ops[a].reads, *case.graph.ops[a].writes} if kind == COMPUTE else {a}
            last_end |= {t: max(end, last_end.get(t, 0)) for t in used}
        elif kind == DETACH and frees.get((a, b)):
            assert frees[a, b].pop(0) >= last_end.get(a, 0)
    assert not any(frees.values())


@given(st.integers(1, 3).flatmap(lambda streams: cases(queues=False, streams=streams)))
def test_a_plan_whose_live_bytes_in_issue_order_fit_never_blocks(case: Case):
    """A queue for each link, and room below the compute tier is endless; computes on one to three streams.

    Premise: between a copy of a tensor into the compute tier and a copy out of it an op uses it. Without it a later
    compute may take the room that such a copy in still waits for, while what would free that room waits for the copy.
    """
    assume(not leaves_unused(case))
    assume(all(math.isinf(t.capacity_bytes) for t in case.hardware.tiers.values()))
    trace = run(case)
    assert trace.status == "ok", trace.blocked
    assert len(computes(trace)) == sum(kind == COMPUTE for kind, *_ in issued(case))


@given(any_cases, st.booleans(), st.data())
def test_no_op_needs_more_than_what_is_live_then(case: Case, may_repeat: bool, data: st.DataObject):
    """So what fits at once needs no proof; whatever the homes are."""
    graph, tiers = case.graph, [*range(len(case.hardware.tiers)), FREE]
    exists = set(graph.inputs)
    homes = [data.draw(st.sampled_from(tiers)) if t in exists else NOWHERE for t in range(len(graph.tensors))]
    needs = GraphNeeds(graph, case.hardware, homes, math.inf, may_repeat=may_repeat)
    live = live_bytes(graph)
    assert (needs.by_op[0] <= live).all()
    assert (needs.demand.work + needs.demand.idle <= live).all()
