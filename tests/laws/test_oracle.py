"""A second simulator, from the text of the semantics alone (`tests/oracle.py`), agrees with the engine in all."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from oracle import Oracle, Told
from replays import rows, run
from strategies import Case, cases

from simulator.metrics import summarise
from simulator.scenario import Switches
from simulator.trace import Trace

any_cases = st.integers(1, 3).flatmap(lambda streams: cases(max_ops=8, streams=streams))


@given(any_cases, st.sampled_from(["start", "end"]))
def test_the_oracle_agrees(case: Case, waits_for: str) -> None:
    _agree(case, waits_for)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(any_cases, st.sampled_from(["start", "end"]))
def test_the_oracle_agrees_on_many(case: Case, waits_for: str) -> None:
    _agree(case, waits_for)


def _agree(case: Case, waits_for: str) -> None:
    is_end = waits_for == "end"
    expected = Oracle(case.graph, case.hardware, case.plan, case.budget_bytes, wait_for_end=is_end).run()
    event(expected.status)
    assert _told(case, run(case, switches=Switches(copies_wait_for=waits_for))) == expected


def _told(case: Case, trace: Trace) -> Told:
    summary = summarise(case.graph, case.hardware, trace)
    names = ("issue", "issued_ns", "start_ns", "end_ns", "channel")
    spans = sorted(tuple(span[name] for name in names) for span in rows(trace.spans))
    used, peaks = [0] * len(case.plan.tiers), [0] * len(case.plan.tiers)
    for row in rows(trace.residencies):
        used[row["tier"]] += row["delta_bytes"]
        peaks[row["tier"]] = max(peaks[row["tier"]], used[row["tier"]])
    return Told(trace.status, spans, peaks, summary["step_ns"], summary["makespan_ns"])
