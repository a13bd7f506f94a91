"""One run from top to bottom: read, build, decide, check, replay, check again, count, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from simulator import catalog
from simulator.engine import using
from simulator.errors import insist
from simulator.graph import Job
from simulator.importers import refuse_foreign
from simulator.run.case import Case, Policies, names_in, prepare
from simulator.run.questions import frontier
from simulator.run.results import Result, Results
from simulator.run.row import rows_of
from simulator.run.sweep import Progress, silent
from simulator.run.what_if import page_parts, what_would_free
from simulator.scenario.question import Question


def run(  # noqa: PLR0913 - what is run, and how
    scenario: catalog.Named | None = None,
    *,
    hardware: str | Path | None = None,
    workload: str | Path | None = None,
    software: str | Path | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    job: Job | None = None,
    progress: Progress | None = None,
    what_if: bool | None = False,
    engine: str | None = None,
) -> Results:
    """Replay a workload on a machine under some policies.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, the document itself, or a `Loaded` one.
    hardware, workload
        Instead of a scenario: a machine and what runs on it, each a name in the catalogue or a path that ends in
        ``.yaml``. The rows are those of `policies`, or ``resident``, ``reactive`` and ``static``.
    software
        How a framework drives the machine, named likewise: the same as ``software`` in `set`.
    set
        Changes to the machine, as in the document, and to others: ``{"links.*.bandwidth": "50 GB/s", "workload.batch":
        4, "homes.weight": "free", "budget": "40 GB"}``; see `simulator.catalog.resolve`. What the scenario expects is
        then not checked.
    policies
        Names: only these rows of the scenario, or policies with their default options. Functions by name: rows beside
        those of the scenario.
    job
        What all ranks run, instead of what would be built from the workload.
    progress
        Called now and then.
    what_if
        Whether to search for the bandwidth, and the capacity, with which the fastest row is free: its step is as long
        as if nothing moved. None, as in `hosim run`: only if it is not free already, and the search is quick.
    engine
        What replays: ``simpy``, ``compiled``, or ``auto``, which is the latter where it can. No number depends on it.
        Default: the environment variable ``HOSIM_ENGINE``, or else ``auto``.

    Returns
    -------
    Results
        One result per row, in the order of the scenario.

    Raises
    ------
    HosimError
        If a document, an option or a plan is wrong. A row that cannot fit, that blocks itself, or that its policy
        cannot plan is a result, not an error.
    """
    scenario = scenario_to_run(scenario, hardware, workload, policies)
    must, do = "what_if needs a scenario's own job, not a given one", "leave one of the two out"
    insist(job is None or not what_if, "run", must, "both", do)
    must, do = "the job of all ranks is a Job", "make it with Job.of(graph)"
    insist(job is None or isinstance(job, Job), "job", must, f"one {type(job).__name__}", do)
    with using(engine):
        loaded = catalog.resolve(scenario, with_software(set, software))
        is_changed = bool(set) or software is not None
        case = prepare(replace(loaded, is_job_given=job is not None), job, is_changed=is_changed)
        results = run_case(case, policies, progress, what_if=what_if if job is None else False)
        if what_if is not False:
            results.search(progress or silent)
    return results


def with_software(changes: Mapping[str, Any] | None, software: str | Path | None) -> Mapping[str, Any] | None:
    """Return changes with the software, if any is named."""
    return changes if software is None else {"software": str(software), **(changes or {})}


def scenario_to_run(
    scenario: catalog.Named | None,
    hardware: str | Path | None,
    workload: str | Path | None,
    policies: Policies | None = None,
) -> catalog.Named:
    """Return the scenario to run: the given one, or one made of a workload on a machine.

    Parameters
    ----------
    scenario, hardware, workload
        As for `run`.
    policies
        The rows of a workload on a machine.

    Raises
    ------
    ConfigError
        If neither or both are given, or one of them is a file that must be imported first.
    """
    given = {"scenario": scenario, "hardware": hardware, "workload": workload}
    named = [name for name, value in given.items() if value is not None]
    must, do = "a scenario is run, or a workload on a machine", "say either scenario, or hardware and workload"
    insist(named in (["scenario"], ["hardware", "workload"]), "run", must, " and ".join(named) or "nothing", do)
    for kind, reference in given.items():
        if isinstance(reference, str | Path):
            refuse_foreign(reference, kind)
    return catalog.scenario_of(str(hardware), str(workload), names_in(policies)) if scenario is None else scenario


def run_case(
    case: Case,
    policies: Policies | None = None,
    progress: Progress | None = None,
    each: Callable[[Result], dict[str, Any]] | None = None,
    *,
    in_forks: bool = False,
    what_if: bool | None = False,
) -> Results:
    """Replay a case under some policies.

    Parameters
    ----------
    case
        What runs, and where.
    policies, progress
        As for `run`.
    each
        Makes the section of each row in the fork that ran it, before the comparison with other rows is added.
    in_forks
        Whether rows run in forks of this process, as many at a time as there are cores. Functions as policies then
        leave nothing in this process but their plans; traces keep no tables.
    what_if
        As for `run`; what would free the fastest row is not searched before `Results.search`.
    """
    progress = progress or silent
    results = rows_of(case, policies, progress, each, in_forks=in_forks)
    searches: dict[str, Any] = {}
    if what_if is not False:
        searches["sought"] = partial(what_would_free, results, policies, is_asked=what_if)
        searches["also"] = partial(page_parts, results, is_asked=bool(what_if))
    if case.loaded.scenario.frontier is None:
        return Results(case, results, **searches)
    question = catalog.question(case.loaded, Question, {})
    searched = frontier(case.loaded, policies=policies, progress=progress)
    answers = {(answer["policy"], answer["within"]): answer for answer in searched.rows}
    for row in results:
        for column, (limit, figure) in question.columns(case.hardware.compute_tier).items():
            answer = answers[row.label, limit]
            row.summary[column] = answer.get(figure)
            if {"tried", "next"} & answer.keys() == {"tried"} and figure not in ("step_ns", "slowdown"):
                row.summary[f"{column}_is"] = "at least" if question.sign > 0 else "at most"  # the search ended there
    return Results(case, results, searched, **searches)
