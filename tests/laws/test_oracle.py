"""A second simulator, from the text of the semantics alone (`tests/oracle`), agrees with the engine in all."""

from __future__ import annotations

from collections.abc import Sequence

import both_engines
import pytest
from examples import examples
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from oracle import Given, Oracle, Told
from oracle.causes import Reason, Wait
from oracle.ranks import Residency
from oracle_cases import Run, choosing, hosted, loading, ranks_that_meet, staged, with_holes
from rank_strategies import paces, unlike
from replays import rows
from strategies import Case, cases

from simulator import engine
from simulator.cost import durations_ns
from simulator.hardware import Hardware
from simulator.metrics import summarise
from simulator.scenario import Switches
from simulator.trace import CAUSES, Trace

any_cases = st.integers(1, 3).flatmap(lambda streams: cases(max_ops=8, streams=streams))


@given(any_cases, st.sampled_from(["start", "end"]))
def test_the_oracle_agrees(case: Case, waits_for: str) -> None:
    _agree(case, waits_for)


@pytest.mark.slow
@settings(max_examples=examples(4000), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(any_cases, st.sampled_from(["start", "end"]))
def test_the_oracle_agrees_on_many(case: Case, waits_for: str) -> None:
    _agree(case, waits_for)


kinds = {
    "ranks": ranks_that_meet(), "staged": staged(), "dynamic": choosing(), "best_fit": with_holes(), "host": hosted(),
    "loads": loading(), "updates": choosing(updates=True),
}  # fmt: skip


@pytest.mark.parametrize("kind", kinds)
@settings(max_examples=examples(300))
@given(data=st.data())
def test_it_agrees_on_runs_of_a_kind(kind: str, data: st.DataObject) -> None:
    _agree_on(data.draw(kinds[kind]))


@settings(max_examples=examples(300))
@given(ranks_that_meet(), st.data())
def test_it_agrees_on_ranks_whose_devices_are_unlike(run: Run, data: st.DataObject) -> None:
    """The budget of the run is the capacity of the machine's device; those of others are some times that."""
    hardware = run.hardware
    memory = hardware.tiers[hardware.compute_tier].model_copy(update={"capacity_bytes": run.budget_bytes})
    hardware = hardware.model_copy(update={"tiers": {**hardware.tiers, hardware.compute_tier: memory}})
    agree(*unlike(run.programs, hardware, data.draw(paces(len(run.programs)))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds)
@settings(max_examples=examples(4000), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_it_agrees_on_many_runs_of_a_kind(kind: str, data: st.DataObject) -> None:
    _agree_on(data.draw(kinds[kind]))


def _agree_on(run: Run) -> None:
    agree(run.programs, run.hardware, run.budget_bytes)


def _agree(case: Case, waits_for: str) -> None:
    program = engine.Program(case.graph, case.plan, durations_ns(case.graph, case.hardware))
    agree([program], case.hardware, case.budget_bytes, waits_for)


def agree(
    programs: Sequence[engine.Program], hardware: Hardware, budget: int | float | None = None, waits_for: str = "start"
) -> Told:
    """Run both, and compare all that they tell."""
    givens = [Given(p.graph, p.plan, p.starts_ns, p.draws and p.draws.chosen, p.allocator) for p in programs]
    expected = Oracle(givens, hardware, budget, wait_for_end=waits_for == "end").run()
    event(expected.status)
    switches = Switches(copies_wait_for=waits_for)
    trace = both_engines.run(programs, hardware, budget_bytes=budget, switches=switches)
    told = _told(trace, programs, hardware)
    for name in Told.__dataclass_fields__:
        assert getattr(told, name) == getattr(expected, name), name
    return expected


def _told(trace: Trace, programs: Sequence[engine.Program], hardware: Hardware) -> Told:
    names = ("rank", "issue", "issued_ns", "start_ns", "end_ns", "channel")
    spans = sorted(tuple(span[name] for name in names) for span in rows(trace.spans))
    waits = [
        Wait(*(row[name] for name in ("rank", "stream", "op", "issue", "start_ns", "end_ns")),
             Reason(CAUSES[row["cause"]], row["tensor"], row["on"], row["blocker"]))
        for row in rows(trace.waits)
    ]  # fmt: skip
    held: dict[tuple[int, int], int] = {}
    peaks: dict[tuple[int, int], int] = {}
    sharing = [hardware.topology.sharing[tier.scope] for tier in hardware.tiers.values()]
    for row in rows(trace.residencies):
        place = row["tier"], row["rank"] // sharing[row["tier"]]
        held[place] = held.get(place, 0) + row["delta_bytes"]
        peaks[place] = max(peaks.get(place, 0), held[place])
    for rank in range(len(programs)):
        for tier, many in enumerate(sharing):
            peaks.setdefault((tier, rank // many), 0)
    residencies = [Residency(*(row[n] for n in Residency._fields)) for row in rows(trace.residencies)]
    compactions = [
        tuple(row[n] for n in ("rank", "asked_ns", "start_ns", "end_ns", "pages")) for row in rows(trace.compactions)
    ]
    addresses = [
        tuple(row[n] for n in ("rank", "time_ns", "tensor", "offset_bytes", "delta_bytes"))
        for row in rows(trace.addresses)
    ]
    makespan = max((span[4] for span in spans), default=0)
    step = (
        summarise(programs[0].graph, hardware, trace)["step_ns"]
        if len(programs) == 1 and programs[0].plan.fixed
        else None
    )
    return Told(
        trace.status,
        spans,
        _joined(waits),
        sorted(residencies),
        peaks,
        makespan,
        step,
        sorted(compactions),
        sorted(addresses),
    )


def _joined(waits: list[Wait]) -> list[Wait]:
    """Stretches that follow one another with one reason as one: the engine may begin a new one within an instant."""
    found: list[Wait] = []
    for wait in sorted(waits):
        goes_on = found and found[-1]._replace(start_ns=found[-1].end_ns, end_ns=wait.end_ns) == wait
        found.append(wait._replace(start_ns=found.pop().start_ns) if goes_on else wait)
    return found
