"""How a run ends: with which bandwidth, and with which capacity, its fastest row would be free."""

from __future__ import annotations

import math
import shlex
from contextlib import closing
from dataclasses import replace
from functools import partial

from simulator import catalog
from simulator.policies import POLICIES
from simulator.processes import forked
from simulator.report.answers import free_told
from simulator.run.bisection import Search
from simulator.run.case import Case, Policies
from simulator.run.questions import front
from simulator.run.results import Result
from simulator.run.studies import limits_at
from simulator.run.sweep import Progress, Sweep
from simulator.scenario import Frontier

_FREE = "stall + recompute <= 0.1 %"
"""Of a step. To run ops again is no way to be free: a row that may do so stalls with hardly any bandwidth no more."""
_QUICK = 10_000
"""Ops that a run computes: for as many, the search takes about as long as a run of all rows does, a few seconds."""


def what_would_free(
    fastest: Result, policies: Policies | None, progress: Progress, *, is_asked: bool | None
) -> list[str]:
    """Say with which bandwidth, and with which capacity, a row is free: it neither stalls nor runs ops again.

    Parameters
    ----------
    fastest
        The row.
    policies, progress
        As for `simulator.run.run_case`.
    is_asked
        Whether the amounts are searched; None: if the row is not free already, and that is quick. Where it is not, what
        is said is how to ask.

    Returns
    -------
    list of str
        A sentence for each amount, which was tried.
    """
    case, label = fastest.case, fastest.label
    if case.choice(label).is_file:
        return [f"What would make {label} free is not searched: its plan is of one machine."] if is_asked else []
    ops, is_searched = len(case.graph.ops) * case.graph.steps, fastest.policy in {*POLICIES} - {"optimal"}
    is_quick = is_searched and case.job.ranks == 1 and ops <= _QUICK and not case.graph.dynamic_reads
    if is_asked is None and (fastest.is_free or not is_quick):
        ask = f"ask with --policy {shlex.quote(label)} --what-if"
        return [] if fastest.is_free else [f"Which bandwidth, and which capacity, would make {label} free: {ask}."]
    machine = case.loaded.hardware
    wires = " + ".join(f"{kind}.*.bandwidth" for kind in ("links", "buses") if getattr(machine, kind))
    fields = {"bandwidth": wires, "capacity": f"peak.{machine.compute_tier}"}
    searches = [partial(_searched, case, label, policies, *one) for one in fields.items() if one[1]]
    with closing(forked(searches, progress)) as told:
        return [sentence for _, sentence in sorted(told)]


def _searched(case: Case, row: str, policies: Policies | None, what: str, field: str, tell: Progress) -> str:
    """Say with which amount of something a row is free."""
    asked = {"field": field, "such_that": (_FREE,), "resolution": 2}
    question = catalog.question(case.loaded, Frontier, asked)
    search = Search(case.loaded, question, policies, asked, is_bounded=False)
    tell(f"{row}, which {what} would make it free", 0, 0)
    has_budget = what == "capacity" and case.loaded.scenario.budget_bytes is not None
    return free_told(search.answer(search.near_bound(row), math.inf), question, what, has_budget=has_budget)


def beside(fastest: Result, progress: Progress) -> list[Sweep]:
    """Find what stands beside these sentences on a page: peaks against steps of the row, and what limits it.

    Parameters
    ----------
    fastest, progress
        As for `what_would_free`; of a row that is a function nothing is found.
    """
    loaded, row = fastest.case.loaded, fastest.label
    if row not in {one.row for one in loaded.scenario.policies} | {*POLICIES}:
        return []
    found, own = front(loaded, [row], progress), loaded.asking_nothing()
    found = replace(found, view=found.view._replace(title=f"What a lower peak costs {row}"))
    return [found, limits_at(own, [(own, [row])], 1, progress, f"What limits {row}")]
