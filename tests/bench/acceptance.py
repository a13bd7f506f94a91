"""How far the compiler is from the open-source planner, and from the bound, on the traces that both can be given.

    python tests/bench/acceptance.py --json

For each trace, accounting, copy queue, budget and rate: what no plan can beat, then `upstream_greedy` and `static`.
Accountings: in (a) what a step puts out is freed at its last use, as the open-source planner counts it; in (b) it is
kept, in any memory, until the step ends. `upstream_greedy` believes in the budget and runs on a machine with endless
memory, because its plan does not keep to the budget; `static` runs on a machine that enforces it. Copies wait for the
end of the op before them (``--copies-wait-for start``: for its start), for both.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from simulator import bounds, catalog, metrics, referee
from simulator.errors import CapacityError, InvariantError
from simulator.lifetime import live_bytes
from simulator.run.case import Case, execute, prepare
from simulator.scenario import Scenario
from simulator.workload import Workload

RECORDED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "hyper_offload"
"""Where recorded traces lie, if they are there."""

OUTPUTS = {"a": "freed", "b": "kept"}
QUEUES = ("one", "each")
"""One for both directions, or one for each."""

MAX_STALL_SHARE, MAX_GAP = 0.05, 0.05


@dataclass(frozen=True)
class Row:
    """One planner in one setting; times in ms, sizes in GiB."""

    status: str
    step_ms: float | None = None
    stall_ms: float | None = None
    peak_gib: float | None = None
    gap: float | None = None
    planning_s: float = 0.0


@dataclass(frozen=True)
class Setting:
    """What both planners are given."""

    trace: str
    accounting: str
    queue: str
    budget_share: float
    rate_gib_s: int
    copies_wait_for: str


def workload(trace: str, accounting: str) -> Workload:
    """The workload of a shipped or a recorded trace."""
    outputs = {"outputs": OUTPUTS[accounting]}
    if trace == "acceptance":
        about = {"graph": str(catalog.path_of("residency_acceptance", "workload").with_suffix(".jsonl"))}
        return catalog.resolve("residency_acceptance").workload.model_copy(update=about | outputs)
    about = {"name": trace, "graph": str(RECORDED / f"{trace}.json"), "steps": 1}
    return Workload.model_validate(about | outputs)


def case(setting: Setting, policy: str, budget_bytes: int | None) -> Case:
    """The setting as a case with one policy; without a budget the memory is endless."""
    scenario = {
        "name": "acceptance",
        "hardware": "residency_acceptance",
        "workload": "residency_acceptance",
        "policies": [policy],
        "switches": {"copies_wait_for": setting.copies_wait_for},
    }
    if budget_bytes is not None:
        scenario["budget"] = f"{budget_bytes} B"
    changes = {"links.*.bandwidth": f"{setting.rate_gib_s} GiB/s"}
    if setting.queue == "each":
        changes["copy_queues"] = {}
    loaded = catalog.resolve(Scenario.model_validate(scenario), changes)
    return prepare(replace(loaded, workload=workload(setting.trace, setting.accounting)))


def replay(given: Case, policy: str, bound: bounds.Bound, **options: object) -> Row:
    """Plan, check, replay, check again, count."""
    from simulator.policies import POLICIES

    began = time.process_time()
    try:
        plan = POLICIES[policy].plan(given.problem, options)
    except CapacityError as error:
        return Row(f"infeasible, short by {error.report.short_bytes:,} B", planning_s=time.process_time() - began)
    planning_s = time.process_time() - began
    graph, hardware, budget = given.graph, given.hardware, given.problem.budget_bytes
    referee.check_plan(graph, hardware, plan, given.tasks[0].pinned)
    trace = execute(given, [plan])
    referee.check_trace(graph, hardware, [plan], trace, budget, given.loaded.scenario.switches)
    found = metrics.summarise(graph, hardware, trace, bound)
    if trace.status != "ok":
        return Row(trace.status, planning_s=planning_s)
    step, stall, peak = found["step_ns"] / 1e6, found["stall_ns"] / 1e6, found["peak_hbm_bytes"] / 2**30
    return Row("ok", step, stall, peak, found["gap_fraction"], planning_s)


def by_force(given: Case) -> str:
    """Why no plan can fit, counted here from the graph: what one op uses, and what must be held beside it; else empty.

    Raises
    ------
    InvariantError
        If the count is not that of `bounds.infeasible`.
    """
    graph, homes, budget = given.graph, given.problem.known_homes, given.problem.budget_bytes
    unfit = bounds.infeasible(graph, given.hardware, homes, budget)
    here = given.hardware.compute_tier_id
    stay = {t for t, home in enumerate(homes) if home == here and graph.tensors[t].persistent}

    def sizes(tensors: set[int]) -> int:
        return sum(graph.tensors[t].size_bytes for t in tensors)

    used = [(sizes({*op.reads, *op.writes}) + op.workspace_bytes, op) for op in graph.ops]
    held = [(own + sizes(stay - {*op.reads, *op.writes}), own, op) for own, op in used]
    most, own, op = max(held, key=lambda found: found[0])
    if (most > budget) != (unfit is not None) or (unfit is not None and unfit.demand_bytes != most):
        raise InvariantError(f"op {op.name!r}", f"it needs {most:,} B of {budget:,} B", str(unfit), "report this")
    beside = f" and {most - own:,} B must stay beside it" if most > own else ""
    return f"no plan fits: op {op.name!r} alone uses {own:,} B{beside}, of {budget:,} B" if unfit else ""


def judge(setting: Setting, upstream: Row, static: Row, bound_ms: float, compute_ms: float, budget_gib: float) -> str:
    """Say which of the wanted lines is missed; empty if none is."""
    if static.step_ms is None or static.stall_ms is None or static.peak_gib is None or static.gap is None:
        return f"static is {static.status}"
    missed = []
    if static.peak_gib > budget_gib:
        missed.append("peak above the budget")
    if setting.accounting == "b" and static.gap > MAX_GAP:
        missed.append(f"gap above {MAX_GAP:.0%}")
    if setting.accounting == "a" and upstream.step_ms is not None and upstream.stall_ms is not None:
        if static.step_ms > upstream.step_ms:
            missed.append("step longer than upstream_greedy's")
        if bound_ms <= compute_ms and static.stall_ms > MAX_STALL_SHARE * upstream.stall_ms:
            missed.append(f"stall above {MAX_STALL_SHARE:.0%} of upstream_greedy's")
    return "; ".join(missed)


def measure(setting: Setting) -> dict[str, object]:
    """Run both planners in one setting."""
    ample = case(setting, "upstream_greedy", None)
    budget = int(live_bytes(ample.graph).max() * setting.budget_share)
    tight = case(setting, "static", budget)
    times = tight.problem.durations_ns
    homes = tight.problem.known_homes
    timing = bounds.Timing.alone(bounds.Precedence.of(tight.graph), times)
    limit = bounds.Limits(timing, tight.hardware, homes).step(budget)
    upstream = replay(ample, "upstream_greedy", limit, limit=f"{budget} B")
    unfit = by_force(tight)
    static = Row(unfit) if unfit else replay(tight, "static", limit)
    bound_ms, compute_ms, budget_gib = limit.ns / 1e6, sum(times) / 1e6, budget / 2**30
    return {
        **asdict(setting),
        "budget_gib": budget_gib,
        "compute_ms": compute_ms,
        "bound_ms": bound_ms,
        "bounded_by": limit.kind,
        "upstream_greedy": asdict(upstream),
        "static": asdict(static),
        "missed": "" if unfit else judge(setting, upstream, static, bound_ms, compute_ms, budget_gib),
    }


def settings(args: argparse.Namespace) -> Iterator[Setting]:
    """All combinations that were asked for."""
    recorded = sorted(path.stem for path in RECORDED.glob("real_*.json"))
    known = ["acceptance", *recorded]
    for trace in args.traces or known:
        for accounting in args.accountings:
            for queue in args.queues:
                for share in args.budgets:
                    for rate in args.rates:
                        yield Setting(trace, accounting, queue, share / 100, rate, args.copies_wait_for)


HEAD = (
    f"{'trace':<16} {'acc':<3} {'queue':<4} {'budget':>6} {'GiB/s':>5} | {'bound':>8} {'kind':<24} | "
    f"{'upstream':>8} {'stall':>7} {'peak':>7} | {'static':>8} {'stall':>7} {'peak':>7} {'gap':>7} {'plan s':>6} | "
    "missed"
)


def told(row: dict) -> str:
    """One line of the table."""
    cells = [f"{row['trace']:<16} {row['accounting']:<3} {row['queue']:<4} {row['budget_share']:>6.0%}"]
    cells[0] += f" {row['rate_gib_s']:>5}"
    cells.append(f"{row['bound_ms']:8.1f} {row['bounded_by'][:24]:<24}")
    for name in ("upstream_greedy", "static"):
        one = row[name]
        if one["step_ms"] is None:
            cells.append(one["status"])
            continue
        cells.append(f"{one['step_ms']:8.1f} {one['stall_ms']:7.1f} {one['peak_gib']:7.3f}")
    if row["static"]["gap"] is not None:
        cells[-1] += f" {row['static']['gap']:7.2%} {row['static']['planning_s']:6.2f}"
    return " | ".join((*cells, row["missed"] or "-"))


def main() -> None:
    """Run what the command line asks for; end with 1 if a wanted line is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs="+", help="acceptance, real_L04_b48 ... (default: all there are)")
    parser.add_argument("--accountings", nargs="+", choices=("a", "b"), default=("a", "b"))
    parser.add_argument("--queues", nargs="+", choices=QUEUES, default=QUEUES, help="copy queues")
    parser.add_argument("--budgets", nargs="+", type=float, default=(75.0, 50.0, 25.0), help="%% of the peak")
    parser.add_argument("--rates", nargs="+", type=int, default=(16, 50, 200), help="GiB/s")
    parser.add_argument("--copies-wait-for", choices=("start", "end"), default="end")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    if not args.json:
        print(HEAD)
    for setting in settings(args):
        rows.append(measure(setting))
        if not args.json:
            print(told(rows[-1]), flush=True)
    missed = sum(bool(row["missed"]) for row in rows)
    unfit = sum(row["static"]["status"].startswith("no plan fits") for row in rows)
    print(
        json.dumps(rows, indent=1)
        if args.json
        else f"{len(rows) - missed - unfit} of {len(rows)} settings met, {missed} missed, {unfit} that no plan fits"
    )
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
