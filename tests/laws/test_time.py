"""Laws of time: they hold for every valid plan on every machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from bounding import limits_alone
from hypothesis import assume, event, given
from hypothesis import strategies as st
from replays import computes, issued, makespan_ns, reactive, recorded, rows, run, same, transfers, union_ns
from stories import peak_bytes
from strategies import Case, cases, with_host

from simulator.cost import durations_ns
from simulator.cost.service import transfer_ns
from simulator.hardware import ReactiveHost
from simulator.metrics import Frames, RankRun, rank_figures, summarise
from simulator.plan import COMPUTE, DETACH, FREE
from simulator.referee import check_plan, check_trace
from simulator.scenario import Switches

switches = st.builds(Switches, copies_wait_for=st.sampled_from(["start", "end"]))
any_cases = cases(streams=2)
NS_PER_S = 10**9


@given(any_cases, switches)
def test_no_track_runs_two_spans_at_once(case: Case, chosen: Switches):
    """Each stream and each channel, in issue order; a queue starts its transfers in issue order."""
    trace = run(case, switches=chosen)
    names, queues = case.hardware.link_names, case.hardware.copy_queues
    queue = {i: next((q for q, of in queues.items() if name in of), name) for i, name in enumerate(names)}
    free: dict[tuple[object, ...], int] = {}
    for span in computes(trace) + transfers(trace):
        track = (span["track"] if span["kind"] == COMPUTE else queue[span["track"]], span["channel"])
        assert span["start_ns"] >= free.get(track, 0)
        free[track] = span["end_ns"]
    begun: dict[str, int] = {}
    for span in transfers(trace):
        assert span["start_ns"] >= begun.get(queue[span["track"]], 0)
        assert span["channel"] < list(case.hardware.links.values())[span["track"]].channels
        begun[queue[span["track"]]] = span["start_ns"]


@given(any_cases, switches)
def test_compute_and_waits_by_cause_are_exactly_the_end_of_the_last_compute(case: Case, chosen: Switches):
    """On each stream they follow each other from 0 without gap or overlap."""
    trace = run(case, switches=chosen)
    for stream in {s["track"] for s in computes(trace)}:
        spans = [(s["start_ns"], s["end_ns"]) for s in computes(trace) if s["track"] == stream]
        waits = [(w["start_ns"], w["end_ns"]) for w in rows(trace.waits) if w["stream"] == stream]
        assert all(start < end for start, end in waits)
        now = 0
        for start, end in sorted(spans + waits):
            assert start == now
            now = end
        assert now == max(end for _, end in spans)


@given(any_cases, switches)
def test_a_copy_never_starts_before_its_program_point(case: Case, chosen: Switches):
    """The last compute issued before it has started, or ended, as the switch says."""
    trace = run(case, switches=chosen)
    spans = {s["issue"]: s for s in rows(trace.spans)}
    point = "end_ns" if chosen.copies_wait_for == "end" else "start_ns"
    last = None
    for issue, code in enumerate(issued(case)):
        if code[0] == COMPUTE:
            last = issue
        elif issue in spans and spans[issue]["kind"] != COMPUTE and last is not None:
            assert last in spans
            assert spans[issue]["start_ns"] >= spans[last][point]


@given(any_cases)
def test_a_span_takes_its_time(case: Case):
    """A compute exactly its own, a transfer at least its own, where copies take no bandwidth from kernels."""
    trace = run(case)
    alone = durations_ns(case.graph, case.hardware)
    assert all(s["end_ns"] - s["start_ns"] == alone[s["item"]] for s in computes(trace))
    links = list(case.hardware.links.values())
    for span in transfers(trace):
        least = transfer_ns(case.graph.tensors[span["item"]].size_bytes, links[span["track"]])
        assert span["end_ns"] - span["start_ns"] >= least


@given(any_cases, switches)
def test_a_link_a_bus_and_a_memory_carry_no_more_than_their_bandwidth(case: Case, chosen: Switches):
    """Bytes moved are at most bandwidth times the time in which anything was under way."""
    trace, names = run(case, switches=chosen), case.hardware.link_names
    limits = [((name,), link.bandwidth_bytes_per_s) for name, link in case.hardware.links.items()]
    limits += [(bus.links, bus.bandwidth_bytes_per_s) for bus in case.hardware.caps.values()]
    for links, bandwidth in limits:
        spans = [s for s in transfers(trace) if names[s["track"]] in links]
        moved = sum(case.graph.tensors[s["item"]].size_bytes * links.count(names[s["track"]]) for s in spans)
        assert bandwidth == float("inf") or moved * NS_PER_S <= bandwidth * union_ns(spans)


@given(cases())
def test_a_run_takes_at_least_its_compute_each_links_busy_time_and_the_bound(case: Case):
    """One stream, program order, no recompute, what the plan moves has a free home: the premises of the bounds.

    A run that peaks at some bytes is a plan for a budget of that size: the tightest that it can be held against.
    """
    trace = run(case)
    if trace.status != "ok":
        return
    alone = durations_ns(case.graph, case.hardware)
    assert makespan_ns(trace) >= sum(alone) * case.graph.steps
    for link in range(len(case.hardware.links)):
        assert makespan_ns(trace) >= union_ns([s for s in transfers(trace) if s["track"] == link])
    moved = {tensor for kind, tensor, *_ in case.plan.actions if kind == DETACH}
    homes = [FREE if t in moved and home >= 0 else home for t, home in enumerate(case.plan.home)]
    repeats = len(computes(trace)) > case.graph.steps * len(case.graph.ops)
    event("repeats" if repeats else "runs each op once")
    step_ns, peak = summarise(case.graph, case.hardware, trace)["step_ns"], peak_bytes(trace, 0)
    limits = limits_alone(case.graph, case.hardware, alone, homes, may_repeat=repeats)
    assert step_ns >= limits.step(peak).ns
    assert peak >= limits.peak_bytes(step_ns)


@given(any_cases, switches)
def test_the_referee_agrees_with_the_engine(case: Case, chosen: Switches):
    """Every plan here is valid, and every trace of it obeys every law that the referee knows."""
    check_plan(case.graph, case.hardware, case.plan)
    trace = run(case, switches=chosen)
    check_trace(case.graph, case.hardware, [case.plan], trace, case.budget_bytes, chosen)


@given(any_cases, switches)
def test_the_summary_adds_up(case: Case, chosen: Switches):
    """Compute, waits by cause and drain are the step, exactly; what is hidden is a share."""
    trace = run(case, switches=chosen)
    row = summarise(case.graph, case.hardware, trace)
    if row["status"] == "ok":
        assert row["compute_ns"] + row["recompute_ns"] + row["stall_ns"] + row["drain_ns"] == row["step_ns"]
        assert row["warmup_ns"] + row["step_ns"] <= row["makespan_ns"]
        assert row["hidden_fraction"] is None or 0 <= row["hidden_fraction"] <= 1


@given(any_cases, switches)
def test_a_row_needs_no_rows_but_those_kept_of_the_last_step(case: Case, chosen: Switches):
    trace = run(case, switches=chosen)
    ran = RankRun.of(case.graph, case.hardware, trace)
    event(f"left out: {len(ran.trace.spans) < len(trace.spans)}")
    assert rank_figures(case.graph, case.hardware, ran) == rank_figures(
        case.graph, case.hardware, replace(ran, trace=trace)
    )


@given(cases())
def test_compute_is_each_op_once_and_recompute_the_rest(case: Case):
    """Whatever a plan repeats, on one stream."""
    trace = run(case)
    row = summarise(case.graph, case.hardware, trace)
    if row["status"] == "ok":
        alone = durations_ns(case.graph, case.hardware)
        runs = Counter(a for kind, a in zip(case.plan.fixed.kind, case.plan.fixed.a, strict=True) if kind == COMPUTE)
        assert row["compute_ns"] == sum(alone)
        assert row["recompute_ns"] == sum((runs[op] - 1) * ns for op, ns in enumerate(alone))
        names = Frames(case.graph, case.hardware, trace).spans()["name"]
        assert names[names.str.startswith("step")].is_unique


@given(any_cases, switches)
def test_the_same_input_gives_the_same_trace(case: Case, chosen: Switches):
    """Row by row."""
    assert same(run(case, switches=chosen), run(case, switches=chosen))


def runs_on(case: Case) -> bool:
    """Whether an op that changes what outlasts a step runs once more when all have: a record has no end of a step."""
    left = set(range(len(case.graph.ops)))
    for kind, op, *_ in case.plan.fixed.codes():
        if kind == COMPUTE and not left and {*case.graph.ops[op].writes} & {*case.graph.inputs, *case.graph.outputs}:
            return True
        left -= {op} if kind == COMPUTE else set()
    return False


@given(cases())
def test_a_record_of_what_was_issued_is_a_valid_plan(case: Case):
    """A fixed plan that is issued step by step by a runtime is recorded as what it was."""
    assume(not runs_on(case))
    plan = reactive(case)
    trace = run(case, plan=plan)
    check_trace(case.graph, case.hardware, [plan], trace, case.budget_bytes)
    if trace.status == "ok":
        record = recorded(plan, trace)
        assert list(record.fixed.codes()) == issued(case)
        check_plan(case.graph, case.hardware, record)


@given(cases(max_steps=2), switches, st.lists(st.integers(0, 30), min_size=6, max_size=6), st.integers(1, 6))
def test_a_host_ahead_of_the_clock_changes_nothing(case: Case, chosen: Switches, costs: list[int], depth: int):
    """A plan that looks at the machine keeps its host at the clock's time, one that does not lets it run ahead.

    Both issue the same steps here, so that all that happens is the same; what happens to places at one instant may be
    written in another order.
    """
    names = ("inspect_ns", "compute_ns", "copy_ns", "detach_ns", "sync_ns", "update_ns")
    paid = ReactiveHost().model_copy(update=dict(zip(names, costs, strict=True)))
    hardware = with_host(case.hardware, reactive=paid, queue_depth=depth)
    looks, does_not = (run(case, hardware, replace(reactive(case), looks=looks), chosen) for looks in (True, False))
    assert looks.status == does_not.status
    assert rows(looks.spans) == rows(does_not.spans)
    assert rows(looks.waits) == rows(does_not.waits)
    taken = [sorted(rows(trace.residencies), key=lambda row: tuple(row.values())) for trace in (looks, does_not)]
    assert taken[0] == taken[1]


@given(any_cases, switches, st.randoms(use_true_random=False))
def test_the_order_in_which_an_op_lists_its_reads_changes_nothing(case: Case, chosen: Switches, random: Random):
    """No row of the trace, and so no cause of a wait."""
    ops = tuple(replace(op, reads=tuple(random.sample(op.reads, len(op.reads)))) for op in case.graph.ops)
    shuffled = replace(case, graph=replace(case.graph, ops=ops))
    assert same(run(case, switches=chosen), run(shuffled, switches=chosen))
