"""The open-source HyperOffload planner under the rules of its runtime: the figures that were printed for it.

Their source is a timeline model of that runtime on a trace that anyone can rebuild: 32 layers, copies wait for the end
of the op before them, one copy queue for both directions, 10 us a copy. The planner believes in a budget that nothing
enforces, so that the machine has no limit here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from acceptance_graph import graph

from simulator import catalog, metrics, referee
from simulator.errors import CapacityError, InvariantError
from simulator.graph import Job
from simulator.lifetime import live_bytes
from simulator.plan import Plan
from simulator.policies import POLICIES
from simulator.policies.baselines import choose
from simulator.run.case import Case, execute, prepare
from simulator.trace import Trace

GIB = 2**30
MS = 10**6
HELD, FREED = "kept", "freed"

TABLE = [
    # share, GiB/s, planner's peak, step, stall, peak with all held, peak with gradients freed; GiB and ms
    (75, 16, 12.138, 877.7, 261.0, 13.045, 13.045),
    (75, 50, 12.138, 700.9, 84.1, 12.188, 12.138),
    (50, 16, 8.134, 1233.3, 616.5, 13.045, 13.045),
    (50, 50, 8.134, 781.9, 165.1, 12.188, 8.134),
    (50, 200, 8.134, 659.4, 42.6, 12.188, 8.134),
    (25, 16, 4.066, 1849.0, 1232.2, 13.045, 13.045),
    (25, 50, 4.066, 864.1, 247.4, 12.188, 6.037),
    (25, 200, 4.066, 680.7, 63.9, 12.188, 4.066),
]


@dataclass(frozen=True)
class Run:
    """One replay, and what it came from."""

    case: Case
    plan: Plan
    trace: Trace
    limit_bytes: int

    @property
    def row(self) -> dict[str, Any]:
        return metrics.summarise(self.case.graph, self.case.hardware, self.trace)


@cache
def case(rate_gib_s: int, outputs: str, layers: int = 32) -> Case:
    """The acceptance trace on a machine without limit."""
    shipped = catalog.resolve("residency_acceptance")
    step = graph(layers) if outputs == "kept" else replace(graph(layers), outputs=())
    scenario = shipped.scenario.model_copy(update={"budget_bytes": None})
    changes = {"links.*.bandwidth": f"{rate_gib_s} GiB/s"}
    loaded = catalog.resolve(scenario, changes)
    return prepare(loaded, Job.of(step))


def run(share: int, rate_gib_s: int, outputs: str = FREED, layers: int = 32, lead: int = 0) -> Run:
    """Replay the planner's plan under the rules of its runtime, and have both checked."""
    given = case(rate_gib_s, outputs, layers)
    limit = int(live_bytes(given.graph).max()) * share // 100
    plan = POLICIES["upstream_greedy"].plan(given.problem, {"limit": f"{limit} B", "lead": lead})
    referee.check_plan(given.graph, given.hardware, plan, given.tasks[0].pinned)
    trace = execute(given, [plan])
    referee.check_trace(given.graph, given.hardware, [plan], trace, None, given.loaded.scenario.switches)
    return Run(given, plan, trace, limit)


def test_the_rules_are_those_of_its_runtime():
    loaded = case(16, HELD).loaded
    assert loaded.scenario.switches.copies_wait_for == "end"
    assert loaded.hardware.queues == (("d2h", "h2d"),)


@pytest.mark.parametrize(("share", "rate", "planned", "step", "stall", "held", "freed"), TABLE)
def test_the_acceptance_table(share, rate, planned, step, stall, held, freed):
    one, other = run(share, rate, FREED), run(share, rate, HELD)
    assert choose(one.case.problem, one.limit_bytes)[1] / GIB == pytest.approx(planned, abs=0.001)
    for row, peak in ((one.row, freed), (other.row, held)):
        assert row["step_ns"] / MS == pytest.approx(step, abs=0.1)
        assert row["stall_ns"] / MS == pytest.approx(stall, abs=0.1)
        assert row["peak_hbm_bytes"] / GIB == pytest.approx(peak, abs=0.001)


@pytest.mark.parametrize(
    ("layers", "taken"), [(8, 48), (32, 180), (128, 708), pytest.param(512, 2820, marks=pytest.mark.slow)]
)
def test_it_takes_as_many_intervals_as_were_counted(layers, taken):
    given = case(16, FREED, layers)
    limit = int(live_bytes(given.graph).max()) // 2
    assert len(choose(given.problem, limit)[0]) == taken


@pytest.mark.parametrize(
    ("rate", "stall"),
    [(16, 2395.4), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((50, 650.9), (200, 168.0)))],
)
def test_four_times_the_layers(rate, stall):
    row = run(50, rate, layers=128).row
    assert row["compute_ns"] / MS == pytest.approx(2466.8, abs=0.1)
    assert row["stall_ns"] / MS == pytest.approx(stall, abs=0.1)


@pytest.mark.parametrize("share", [75, 50, 25])
@pytest.mark.parametrize("rate", [50, 200])
def test_the_same_copies_issued_ten_ops_earlier_do_not_stall(share, rate):
    assert run(share, rate, lead=10).row["stall_ns"] == 0


def test_the_same_copies_issued_ten_ops_earlier_over_a_slow_link():
    assert run(50, 16, lead=10).row["stall_ns"] / MS == pytest.approx(407.7, abs=0.1)


def judge(one: Run) -> None:
    """Hold the trace against the budget that the planner was given."""
    switches = one.case.loaded.scenario.switches
    referee.check_trace(one.case.graph, one.case.hardware, [one.plan], one.trace, one.limit_bytes, switches)


def test_a_budget_is_met_on_paper_and_where_the_link_keeps_up():
    judge(run(50, 50, FREED))
    late = run(50, 16, FREED)
    assert choose(late.case.problem, late.limit_bytes)[1] < late.limit_bytes
    with pytest.raises(InvariantError, match=r"at most its capacity \(hbm\), found holds B .*, of B 8,750,366,720, "):
        judge(late)


def test_gradients_that_stay_are_not_counted():
    with pytest.raises(InvariantError, match="at most its capacity"):
        judge(run(50, 50, HELD))
    shipped = prepare(catalog.resolve("residency_acceptance")).problem
    with pytest.raises(CapacityError) as caught:
        POLICIES["upstream_greedy"].plan(shipped)
    assert caught.value.report.demand_bytes == pytest.approx(12.188 * GIB, rel=0.001)
