"""How the laws run a case, and what they read from its trace: plain loops that share nothing with the referee."""

from __future__ import annotations

import math
from dataclasses import replace

import both_engines
from strategies import Case

from simulator import engine
from simulator.cost import durations_ns
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, Actions, Plan
from simulator.scenario import Switches
from simulator.trace import Table, Trace


def run(
    case: Case,
    hardware: Hardware | None = None,
    plan: Plan | None = None,
    switches: Switches | None = None,
    budget_bytes: int | None = None,
) -> Trace:
    """Replay a case, perhaps on another machine, under another plan or with another budget."""
    hardware, budget = hardware or case.hardware, case.budget_bytes if budget_bytes is None else budget_bytes
    program = engine.Program(case.graph, plan or case.plan, durations_ns(case.graph, hardware))
    return both_engines.run([program], hardware, budget_bytes=budget, switches=switches)


def rows(table: Table) -> list[dict[str, int]]:
    """The rows of a table as dictionaries."""
    whole = table.whole()
    return [dict(zip(whole, values, strict=True)) for values in zip(*(c.tolist() for c in whole.values()), strict=True)]


def computes(trace: Trace) -> list[dict[str, int]]:
    """Computes by issue."""
    return sorted((s for s in rows(trace.spans) if s["kind"] == COMPUTE), key=lambda s: s["issue"])


def transfers(trace: Trace) -> list[dict[str, int]]:
    """Transfers by issue."""
    return sorted((s for s in rows(trace.spans) if s["kind"] == COPY), key=lambda s: s["issue"])


def makespan_ns(trace: Trace) -> int:
    """The last end of anything [ns]."""
    return max((s["end_ns"] for s in rows(trace.spans)), default=0)


def union_ns(spans: list[dict[str, int]]) -> int:
    """Time in which at least one of the spans is under way [ns]."""
    total = reached = 0
    for span in sorted(spans, key=lambda s: s["start_ns"]):
        total += max(0, span["end_ns"] - max(reached, span["start_ns"]))
        reached = max(reached, span["end_ns"])
    return total


def stays(trace: Trace) -> list[tuple[int, int, float, float]]:
    """``(tensor, tier, from, to)`` of every place; what is still held lasts for ever."""
    open_: dict[tuple[int, int], list[float]] = {}
    found = []
    for row in rows(trace.residencies):
        key = (row["tensor"], row["tier"])
        if row["delta_bytes"] > 0:
            open_.setdefault(key, []).append(row["time_ns"])
        else:
            found.append((*key, open_[key].pop(0), row["time_ns"]))
    return found + [(*key, start, math.inf) for key, starts in open_.items() for start in starts]


def issued(case: Case) -> list[tuple[int, int, int, int]]:
    """The codes that the host issues, over all steps."""
    steps = case.plan.fixed
    return list(steps.codes()) * case.plan.repeats if steps is not None else []


def reactive(case: Case) -> Plan:
    """The case's plan as one that is decided while it runs, step by step."""
    return replace(case.plan, actions=lambda view: iter(issued(case)), repeats=1)


def recorded(plan: Plan, trace: Trace) -> Plan:
    """What a reactive plan issued, as a fixed plan."""
    whole = trace.issued[0].whole()
    steps = Actions.from_columns(*(whole[name].tolist() for name in ("kind", "a", "b", "c")))
    return replace(plan, actions=steps, repeats=1)


def same(one: Trace, other: Trace) -> bool:
    """Whether two runs have the same rows everywhere."""
    tables = ("spans", "waits", "residencies")
    return all(rows(getattr(one, name)) == rows(getattr(other, name)) for name in tables)
