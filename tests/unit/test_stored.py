"""Shared tensors: what several ranks read in a tier that they share is stored there once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rank_stories import cluster, perform, team

from simulator import engine, metrics, referee
from simulator.cost import durations_ns
from simulator.errors import CapacityError, InvariantError, PlanError
from simulator.graph import Job
from simulator.hardware import Hardware
from simulator.lifetime import duplicates
from simulator.plan import NOWHERE, Actions, Plan
from simulator.run.placement import shares

TEXT = "copy w ddr hbm; compute f; detach w hbm"


def graph(shared):
    """An op that reads a weight of 30 bytes, shared or not, and updates a state of 10 that is not."""
    g = team("w 30 persistent, s 10 persistent", "f: w s -> s, 5 ns", groups={})
    return replace(g, tensors=(replace(g.tensors[0], shared=shared), g.tensors[1]))


def machine(scope, nodes=2, capacity="1 kB"):
    document = cluster(4, nodes, scope="supernode").model_dump(by_alias=True)
    document["tiers"]["ddr"] |= {"scope": scope, "capacity": capacity}
    return Hardware.model_validate(document)


def peak(shared, scope, fold="never", nodes=2):
    h = machine(scope, nodes)
    return metrics.peaks_bytes(h, perform(h, [(graph(shared), TEXT)] * 4, "w ddr, s hbm", fold=fold))["ddr"]


@pytest.mark.parametrize("fold", ["never", "always"])
@pytest.mark.parametrize(
    ("scope", "shared", "bytes_"),
    [
        ("device", "supernode", 30),
        ("node", None, 60),
        ("node", "node", 30),
        ("node", "supernode", 30),
        ("supernode", None, 120),
        ("supernode", "node", 60),
        ("supernode", "supernode", 30),
    ],
)
def test_a_shared_tensor_is_stored_once_where_ranks_share_a_tier(scope, shared, bytes_, fold):
    assert peak(shared, scope, fold) == bytes_


def test_each_rank_copies_it_for_itself():
    h = machine("supernode")
    trace = perform(h, [(graph("supernode"), TEXT)] * 4, "w ddr, s hbm")
    assert metrics.peaks_bytes(h, trace)["hbm"] == 40
    memory = metrics.Frames(Job.of(graph("supernode"), 4), h, trace).memory()
    held = memory[memory["tier"] == "ddr"]
    assert held["used_bytes"].tolist() == held["kind_bytes"].tolist() == [30] * 4


def test_what_is_stored_once_fits_where_copies_of_all_would_not():
    h = machine("supernode", capacity="40 B")
    programs = [(graph("supernode"), TEXT)] * 4
    assert perform(h, programs, "w ddr, s hbm").status == "ok"
    assert perform(h, programs, "w ddr, s hbm", fold="auto").stands_in == (0,) * 4, "there is room for all"
    with pytest.raises(CapacityError):
        perform(h, [(graph(None), TEXT)] * 4, "w ddr, s hbm")


def test_plans_divide_what_is_left_beside_it():
    h = machine("supernode", capacity="50 B")
    ddr = h.tier_names.index("ddr")
    homes = (ddr, NOWHERE)
    assert shares(Job.of(graph("supernode"), 4), h, [homes])[0][ddr] == 30 + (50 - 30) // 4
    again = list(duplicates([(graph("supernode"), homes)] * 4, h))
    assert again == [(rank, ddr, (0,), 30) for rank in (1, 2, 3)]


def test_it_stays_at_home():
    h, g = machine("supernode"), graph("supernode")
    hbm, ddr = (h.tier_names.index(name) for name in ("hbm", "ddr"))
    steps = Actions()
    steps.copy(0, ddr, hbm)
    steps.detach(0, ddr)
    steps.compute(0)
    steps.copy(0, hbm, ddr)
    steps.detach(0, hbm)
    plan = Plan("story", h.tier_names, (ddr, hbm), steps)
    with pytest.raises(PlanError, match="or that ranks share there, stays there"):
        referee.check_plan(g, h, plan)
    referee.check_plan(graph(None), h, plan)


@pytest.mark.parametrize("told", [(), ((1, 1, 0, 30), (2, 1, 0, 30), (3, 1, 0, 60)), ((1, 1, 0, 29),)])
def test_a_trace_that_miscounts_what_is_stored_once_is_refused(told):
    h, g = machine("supernode"), graph("supernode")
    trace = perform(h, [(g, TEXT)] * 4, "w ddr, s hbm")
    home = tuple(h.tier_names.index(name) for name in ("ddr", "hbm"))
    steps = Actions()
    steps.copy(0, home[0], home[1])
    steps.compute(0)
    steps.detach(0, home[1])
    plans = [Plan("story", h.tier_names, home, steps)] * 4
    again = engine.run([engine.Program(g, plan, durations_ns(g, h)) for plan in plans], h)
    assert np.array_equal(again.residencies.whole()["delta_bytes"], trace.residencies.whole()["delta_bytes"])
    referee.check_trace(Job.of(g, 4), h, plans, again)
    with pytest.raises(InvariantError, match="a tensor stored once in ddr counts once"):
        referee.check_trace(Job.of(g, 4), h, plans, replace(again, stored_once=told))
