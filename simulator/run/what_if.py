"""What is searched at the end of a run: the bandwidth and the capacity with which its fastest row would be free.

A row is *free* if its step is as long as if nothing moved. What a job waits for then, too, such as collectives, does
not count against it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from simulator.catalog.settings import amounts
from simulator.lifetime import live_bytes
from simulator.metrics.rows import by_step
from simulator.policies import POLICIES
from simulator.report.answers import FREE, free_sentence
from simulator.report.views import SweepView
from simulator.report.words import quantity, ratio
from simulator.run.bisection import Search
from simulator.run.case import Case, Policies, prepare
from simulator.run.questions import pareto
from simulator.run.results import Result
from simulator.run.row import row_of, unmoved_row
from simulator.run.studies import limits_at
from simulator.run.sweep import Progress, Sweep, silent
from simulator.scenario.question import UNMOVED
from simulator.units import listed

_QUICK = 25_000
"""Most ops that a row runs until it has its plan, for an unasked search: this takes a few seconds."""
_SEARCHED = {*POLICIES} - {"optimal"}
"""Policies that are searched unasked: a solver takes long, however few plans it tries."""
_PAGE = 80_000
"""Most ops that are run for further parts of a page, unasked: a few seconds, too."""
_ROOMS = 8
"""Time for a front over that for its row: where there is room, there is little to plan."""


def what_would_free(
    rows: Sequence[Result], policies: Policies | None, *, is_asked: bool | None
) -> list[Callable[[Progress], str]]:
    """Search with which bandwidth, and with which capacity, the fastest row is free; or which homes keep it from that.

    Each search tries about two plans of the row, each about as hard to find as its own: if the row took half of the
    run, a search takes as long as the run.

    Parameters
    ----------
    rows
        All rows of the run.
    policies
        As for `simulator.run.run_case`.
    is_asked
        Whether to search; None: only if the row is not free already, and the search takes no longer than the rows did,
        or a few seconds. Otherwise a sentence says how to ask. The number of plans tried decides, not the time, so the
        same run always says the same.

    Returns
    -------
    list of callable
        A search for each amount, whose sentence says what was tried, if anything; none if no row ran.
    """
    fastest = next(iter(by_step(rows)), None)
    if fastest is None:
        return []
    case, label = fastest.case, fastest.label
    if case.graph.on_host:  # what crosses between its devices must, whatever stays
        return [lambda _: f"No bandwidth or capacity is searched for {label}: its host computes."] if is_asked else []
    if case.choice(label).is_file:
        why = f"No bandwidth or capacity is searched for {label}: its plan is for one machine."
        return [lambda _: why] if is_asked else []
    is_quick = fastest.policy in _SEARCHED and _ops_computed(fastest) <= max(_QUICK, sum(map(_ops_computed, rows)) / 2)
    if is_asked is None and (_is_free(fastest) or not is_quick):
        ask = f"ask with --policy {shlex.quote(label)} --what-if"
        hint = f"For the bandwidth or capacity at which {label} never stalls, {ask}."
        return [] if _is_free(fastest) else [lambda _: hint]
    machine = case.loaded.hardware
    wires = [f"{kind}.*.bandwidth" for kind in ("links", "buses") if getattr(machine, kind)]
    wires += [f"tiers.{name}.bandwidth" for name in machine.memories.values()]
    fields = {"bandwidth": " + ".join(wires), "capacity": f"peak.{machine.compute_tier}"}
    searches: list[Callable[[Progress], str]] = [
        partial(_freeing, case, label, policies, kind, field) for kind, field in fields.items() if field
    ]
    if not machine.has_like_memories:
        del searches[-1:]
    elif _homes_below(case) and all(live_bytes(task.graph).max() <= task.problem.budget_bytes for task in case.tasks):
        searches[-1:] = [partial(_needless, fastest, policies)]  # more room cannot be what lacks
    return searches


def _is_free(row: Result) -> bool:
    """Tell whether a row is free; where it waits for peers, which may wait for copies, its step tells."""
    return row.is_free and ("peer" not in row.causes or row.summary["step_ns"] <= FREE * _unmoved_ns(row.case))


def _unmoved_ns(case: Case) -> float:
    return unmoved_row(case)["step_ns"] or math.inf


def _homes_below(case: Case) -> str:
    """Say which tensors that ops use have given homes below the compute tier; empty if none has."""
    named = dict[str, dict[str, None]]()
    for problem in (task.problem for task in case.tasks):
        below = {t: problem.tiers[problem.homes[t]] for t in problem.visitors}
        for pattern, tier in case.loaded.scenario.homes.items():
            if tier in map(below.get, problem.graph.matching(pattern)):
                named.setdefault(tier, {})[pattern] = None
    have = {tier: "have their homes" if len(patterns) > 1 else "has its home" for tier, patterns in named.items()}
    return listed([f"{listed([*patterns])} {have[tier]} in {tier}" for tier, patterns in named.items()])


def _needless(row: Result, policies: Policies | None, tell: Progress) -> str:
    """Try a row with homes left free that lie below the compute tier though all would fit; return the sentence."""
    case, loaded, tier = row.case, row.case.loaded, row.hardware.compute_tier
    tell(f"{row.label}, with its homes left free", 0, 0)
    homes = {pattern: home if home == tier else "free" for pattern, home in loaded.scenario.homes.items()}
    freed = replace(loaded, scenario=loaded.scenario.model_copy(update={"homes": homes}))
    left = prepare(freed, case.job if loaded.is_job_given else None, with_bounds=False)
    ran = row_of(left, row.label, left.rows(policies)[row.label], silent, advice=False).summary
    if ran["status"] != "ok" or any(ran[f"moved_{name}_bytes"] for name in left.hardware.links):
        return ""
    step, where = quantity(ran["step_ns"], "ns"), _homes_below(case)
    return f"{where} but would fit in {tier}: with free homes a step of {row.label} takes {step}."


def _freeing(case: Case, row: str, policies: Policies | None, kind: str, field: str, tell: Progress) -> str:
    """Search the bandwidth or the capacity with which a row is free, and return the sentence."""
    asked = {"of": field, "such_that": (f"step <= {FREE}x",), "over": UNMOVED, "resolution": 2}
    search = Search(case.loaded.without_questions(), asked, policies, is_bounded=False)
    tell(f"{row}, which {kind} would make it free", 0, 0)
    if kind == "capacity" and (homes := _homes_below(case)):
        largest = search.built(search.question.values[-1])
        bound = largest.bound(may_repeat=largest.may_repeat(row), in_turn=largest.choice(row).staggered)
        if (times := bound.ns / _unmoved_ns(largest)) > FREE:  # no room is enough
            least = f"its step takes at least {ratio(times)} as long"
            return f"{row} is not as fast as if nothing moved at any {kind} while {homes}: {least}."
    answer = search.answer(search.search_from_bound(row), math.inf)
    has_budget = kind == "capacity" and case.loaded.scenario.budget_bytes is not None
    return free_sentence(answer, search.question, kind, has_budget=has_budget)


def _ops_computed(row: Result) -> int:
    """Count the ops that run until a row's plans have been tried and it has run."""
    graph = row.case.graph
    return len(graph.ops) * graph.steps * row.case.job.ranks * (row.tries + 1)


def page_parts(rows: Sequence[Result], progress: Progress, *, is_asked: bool) -> list[Sweep]:
    """Make the further parts of a page: peak against step of the fastest row, and what limits it.

    Parameters
    ----------
    rows, progress
        As for `simulator.run.run_case`; a row whose policy is a function has no further parts.
    is_asked
        Whether to make both, however long it takes; else the page says how to ask for what would take long.
    """
    fastest = next(iter(by_step(rows)), None)
    if fastest is None or fastest.policy not in (POLICIES if is_asked else _SEARCHED):
        return []
    loaded, row = fastest.case.loaded, fastest.label
    parts, lacking, base = list[Sweep](), list[str](), loaded.without_questions()
    front = partial(pareto, loaded, policies=[row], progress=progress, sparse=True)
    limits = partial(limits_at, base, [(base, [row])], 1, progress, "")
    makes = {"a lower peak costs": (_ROOMS, front)} if loaded.hardware.has_like_memories else {}
    makes |= {"limits": (len(amounts(base.stated)), limits)}
    for title, (times, make) in makes.items():
        if is_asked or times * _ops_computed(fastest) <= _PAGE:
            part = make()
            parts.append(replace(part, view=part.view._replace(title=f"What {title} {row}"), also=tuple))
        else:
            lacking.append(f"what {title} {row}")
    if lacking:
        again = f"run the same again with --policy {shlex.quote(row)} --what-if"
        view = SweepView("Further questions", [], [f"To see {' and '.join(lacking)}, {again}."])
        parts.append(Sweep("asked", [loaded], [], view))
    return parts
