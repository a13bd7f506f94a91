"""The change of a row's step is exactly the change of what it is spent on, whatever runs."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st
from replays import run
from strategies import Case, cases

from simulator.graph import Job
from simulator.hardware import Hardware
from simulator.metrics import summarise
from simulator.metrics.rows import Row, by_place
from simulator.report.changes import RowChange, changes
from simulator.report.files import figures_of
from simulator.trace import CAUSES


def _said(case: Case, hardware: Hardware) -> dict[str, Any]:
    trace = run(case, hardware)
    summary = summarise(case.graph, hardware, trace)
    row = Row("mine", "mine", summary, Job.of(case.graph), hardware, budget_bytes=math.inf, trace=trace)
    stalls = {"mine": by_place(row)}
    rest = {"figures": figures_of([row]), "expectations": [], "provenance": {"inputs": [], "set": {}}}
    return {"rows": [{"policy": "mine", **summary}], "stalls": stalls, **rest}


def _slower(hardware: Hardware, times: int) -> Hardware:
    links = {
        name: link.model_copy(update={"bandwidth_bytes_per_s": max(1, link.bandwidth_bytes_per_s // times)})
        if link.bandwidth_bytes_per_s < math.inf
        else link
        for name, link in hardware.links.items()
    }
    return hardware.model_copy(update={"links": links})


@given(cases(streams=2))
def test_stalls_by_place_sum_to_the_waits_of_the_row(case: Case):
    said = _said(case, case.hardware)
    (row,) = said["rows"]
    if row["status"] != "ok":
        event("does not end")
        assert said["stalls"]["mine"] == []
        return
    for cause in CAUSES:
        placed = [stall["ns"] for stall in said["stalls"]["mine"] if stall["cause"] == cause]
        assert all(ns > 0 for ns in placed)
        assert sum(placed) == row.get(f"wait_{cause}_ns", 0)


@given(cases(), st.integers(2, 5))
def test_the_terms_sum_to_the_change_of_the_step(case: Case, times: int):
    old, new = _said(case, case.hardware), _said(case, _slower(case.hardware, times))
    (row,) = changes(old, new, 0)
    event("moved" if row.step.difference else "the same")
    assert sum(term.difference for term in row.terms) == row.step.difference
    sizes = [abs(term.difference) for term in row.terms]
    assert sizes == sorted(sizes, reverse=True)
    assert all(one.of == row.step.old for one in row.terms)


@given(cases(), st.floats(0, 0.99), st.floats(0, 0.99), st.integers(2, 5))
def test_a_larger_tolerance_accepts_all_that_a_smaller_one_does(case: Case, one: float, other: float, times: int):
    def compared(new: Hardware, tolerance: float) -> RowChange:
        (row,) = changes(_said(case, case.hardware), _said(case, new), tolerance)
        return row

    slower, low, high = _slower(case.hardware, times), min(one, other), max(one, other)
    strict, accepting = compared(slower, low), compared(slower, high)
    assert accepting.moved <= strict.moved <= compared(slower, 0).moved
    assert accepting.worse <= strict.worse
    same = compared(case.hardware, 0)
    assert not same.moved
    assert not same.worse
