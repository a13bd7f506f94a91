"""How much effort it takes to say how much room is enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator import catalog
from simulator.policies import static
from simulator.run import run_case
from simulator.run.case import prepare


@pytest.fixture
def tight():
    """Training in a fifth of the budget that it needs, for which no plan fits."""
    loaded = catalog.resolve("tiny_train_910c")
    changes = {"budget_bytes": loaded.scenario.budget_bytes // 5, "expect": ()}
    return prepare(replace(loaded, scenario=loaded.scenario.model_copy(update=changes)))


def test_a_large_graph_has_one_candidate_for_each_amount(tight, monkeypatch):
    log, select = [], static.select
    monkeypatch.setattr(static, "EFFORT", 0)  # every graph is large
    monkeypatch.setattr(static, "select", lambda *args, **more: log.append("select") or select(*args, **more))
    (row,) = run_case(tight, ["resident"], lambda label, *_: log.append(label)).values()
    asked = "resident, how much room is enough"
    assert row.shortfall.rooms
    assert set(log) == {asked, "select"}
    assert log[::2] == [asked] * (len(log) // 2)
