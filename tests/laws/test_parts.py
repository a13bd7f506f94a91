"""Laws of runs that are told bit by bit: whoever follows one says what it says of the whole, and remembers little."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from late_cases import machine, moe, on_demand, plan_of, play
from late_strategies import graphs, machines, origins, seeds
from parts import bits, check_in_parts
from replays import reactive, rows, run
from strategies import Case, cases

from simulator import engine
from simulator.cost import durations_ns
from simulator.draws import drawn
from simulator.errors import HosimError
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.metrics import Ran, counted, summarise
from simulator.plan import Plan
from simulator.referee import Drawn, Watch, check_trace
from simulator.scenario import DrawsOrigin, Switches
from simulator.trace import Table, Trace

switches = st.builds(Switches, copies_wait_for=st.sampled_from(["start", "end"]), hbm_contention=st.booleans())
fixed = cases(streams=2).map(lambda case: (case, case.plan))
issued = cases().map(lambda case: (case, reactive(case)))


@given(fixed | issued, switches, st.integers(1, 20))
def test_the_referee_says_the_same_of_parts(decided: tuple[Case, Plan], chosen: Switches, least_steps: int) -> None:
    """Of any plan on any machine, however few steps a part has."""
    case, plan = decided
    trace = run(case, plan=plan, switches=chosen)
    event(trace.status)
    whole = check_trace(case.graph, case.hardware, [plan], trace, case.budget_bytes, chosen)
    said = (case.graph, case.hardware, plan, trace, case.budget_bytes, chosen)
    assert check_in_parts(*said, least_steps=least_steps) == whole


@given(graphs, origins, seeds, machines(), st.integers(0, 4), st.booleans(), st.integers(1, 9))
def test_the_referee_says_the_same_of_parts_of_late_reads(
    graph: Graph, origin: DrawsOrigin, seed: int, hardware: Hardware, keep: int, contended: bool, least_steps: int
) -> None:
    """A runtime that brings what is chosen; copies may slow kernels down."""
    draws, switches = drawn(graph, hardware, origin, seed), Switches(hbm_contention=contended)
    plan = plan_of(graph, on_demand(graph, keep), hardware)
    trace = play(graph, plan, hardware, draws, switches=switches)
    ran, budget = Drawn(plan, draws), hardware.tiers[hardware.compute_tier].usable_bytes
    whole = check_trace(graph, hardware, [ran], trace, None, switches)
    assert check_in_parts(graph, hardware, ran, trace, budget, switches, least_steps=least_steps) == whole


SPOILT = {
    "spans": ("item", "track", "channel", "issue", "issued_ns", "start_ns", "end_ns"),
    "waits": ("stream", "op", "issue", "start_ns", "end_ns", "cause", "on", "blocker"),
    "residencies": ("tier", "tensor", "delta_bytes"),
}


@given(fixed | issued, st.integers(1, 9), st.sampled_from(sorted(SPOILT)), st.data())
def test_what_is_refused_as_a_whole_is_refused_in_parts(
    decided: tuple[Case, Plan], least_steps: int, name: str, data: st.DataObject
) -> None:
    """A number of a trace is spoilt; what breaks a law as a whole does so in parts, and what does not, does not."""
    case, plan = decided
    trace = run(case, plan=plan)
    table = getattr(trace, name)
    assume(len(table))
    spoilt = {column: values.copy() for column, values in table.whole().items()}
    column, row = data.draw(st.sampled_from(SPOILT[name])), data.draw(st.integers(0, len(table) - 1))
    spoilt[column][row] += data.draw(st.sampled_from([-7, -1, 1, 7]))
    again = Table(table.columns)
    again.add(spoilt)
    trace = replace(trace, **{name: again})
    said = (case.graph, case.hardware, plan, trace, case.budget_bytes)
    try:
        whole = check_trace(case.graph, case.hardware, [plan], trace, case.budget_bytes)
    except HosimError:
        event("refused")
        with pytest.raises((HosimError, IndexError)):
            check_in_parts(*said, least_steps=least_steps)
    except IndexError:
        event("nonsense")
    else:
        event("no matter")
        assert check_in_parts(*said, least_steps=least_steps) == whole


def assert_same(graph: Graph, hardware: Hardware, plan: Plan, trace: Trace, followed: Ran) -> None:
    whole = Ran.of(graph, hardware, trace)
    assert counted(graph, hardware, followed) == summarise(graph, hardware, trace)
    for table in ("spans", "waits"):
        mine, other = (
            sorted(map(tuple, map(dict.values, rows(getattr(ran.trace, table))))) for ran in (followed, whole)
        )
        assert mine == other or trace.status != "ok"
    streams = [0] * len(graph.ops)
    if whole.issued is not None and trace.status == "ok":
        assert followed.issued.keeps_program(streams) == whole.issued.keeps_program(streams)


@given(fixed | issued, st.lists(st.integers(0, 300), max_size=20))
def test_a_row_is_the_same_however_it_was_followed(decided: tuple[Case, Plan], moments: list[int]) -> None:
    """All columns, told at any moments; and what is kept of the last step."""
    case, plan = decided
    trace = run(case, plan=plan)
    following = Ran.under(case.graph, case.hardware, plan)
    for happened in bits(trace, moments):
        following.take(happened)
    assert_same(case.graph, case.hardware, plan, trace, following.ended(trace))


@given(fixed | issued, switches)
def test_the_engine_hands_on_what_it_would_keep(decided: tuple[Case, Plan], chosen: Switches) -> None:
    """And says how the run ended."""
    case, plan = decided
    trace, following = run(case, plan=plan, switches=chosen), Ran.under(case.graph, case.hardware, plan)
    program = engine.Program(case.graph, plan, durations_ns(case.graph, case.hardware))
    ended = engine.run(
        [program], case.hardware, budget_bytes=case.budget_bytes, switches=chosen, forward=following.take
    )
    assert (ended.status, ended.blocked, len(ended.spans)) == (trace.status, trace.blocked, 0)
    assert_same(case.graph, case.hardware, plan, trace, following.ended(ended))


def followed(steps: int) -> int:
    """The most memory [B] that it takes to follow a run of so many steps, beyond what it began with."""
    graph, hardware = moe(3, 8, samples=2, each=2, steps=steps), machine()
    draws = drawn(graph, hardware, DrawsOrigin(), 0)
    plan = plan_of(graph, on_demand(graph, 4), hardware)
    budget = hardware.tiers[hardware.compute_tier].usable_bytes
    tracemalloc.start()
    watch = Watch(Job.of(graph, 1), hardware, [Drawn(plan, draws)], budget)
    following = Ran.under(graph, hardware, plan)
    program = engine.Program(graph, plan, durations_ns(graph, hardware), draws=draws)
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    trace = engine.run(
        [program],
        hardware,
        forward=lambda happened: (watch.take(happened, least_steps=1024), following.take(happened)),
    )
    watch.finish(trace)
    assert counted(graph, hardware, following.ended(trace))["status"] == "ok"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak - before


@pytest.mark.slow
def test_memory_does_not_grow_with_the_steps_of_a_run() -> None:
    """Four times the steps take as much, but for the few numbers that are kept of each."""
    followed(100)
    assert followed(1600) < 1.1 * followed(400) + 1200 * 100
