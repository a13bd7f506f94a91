"""How much effort it takes to say how much room is enough."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from simulator import catalog
from simulator.policies.static import compiler, validate
from simulator.run import run_case
from simulator.run.case import prepare

advice = sys.modules["simulator.run.advice"]


@pytest.fixture
def tight():
    """Training in a fifth of the budget that it needs, for which no plan fits."""
    loaded = catalog.resolve("tiny_train_910c")
    changes = {"budget_bytes": loaded.scenario.budget_bytes // 5, "expect": ()}
    return prepare(replace(loaded, scenario=loaded.scenario.model_copy(update=changes)))


def test_a_large_graph_has_one_candidate_for_each_amount(tight, monkeypatch):
    log, select = [], validate.select
    monkeypatch.setattr(compiler, "CANDIDATES_EFFORT", 0)  # every graph is large
    monkeypatch.setattr(validate, "select", lambda *args, **more: log.append("select") or select(*args, **more))
    (row,) = run_case(tight, ["resident"], lambda label, *_: log.append(label)).values()
    asked = "resident, how much room is enough"
    assert row.shortfall.rooms
    assert set(log) == {asked, "select"}
    assert log[::2] == [asked] * (len(log) // 2)


@pytest.mark.parametrize(("effort", "most"), [(10**9, 6), (0, 2)])
def test_the_larger_the_graph_the_fewer_amounts_are_tried(tight, effort, most, monkeypatch):
    told = []
    monkeypatch.setattr(advice, "_EFFORT", effort)
    run_case(tight, ["resident"], lambda *about: told.append(about))
    assert {of for label, _, of in told if label != "resident"} == {most}
