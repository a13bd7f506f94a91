"""Reads and validates files without running anything."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from simulator import builders, catalog, formats, referee
from simulator.document import Document
from simulator.errors import ConfigError
from simulator.hardware import Hardware
from simulator.offsets import issued_bytes
from simulator.plan import Plan
from simulator.report.files import folder_names, plan_names
from simulator.run.case import Case, prepare
from simulator.run.effects import idle_line, own_unread, told
from simulator.run.grid import points_in
from simulator.run.studies import points_of
from simulator.run.task import Task
from simulator.scenario import Scenario
from simulator.scenario.study import StudyDocument
from simulator.serving import read_served
from simulator.serving.replays import smallest
from simulator.units import counted, human
from simulator.workload import Workload


def describe(file: str, scenario: str | None = None, *, is_strict: bool = False) -> str:
    """Check a file, and describe its content in one line.

    Parameters
    ----------
    file
        A path; or the name of a document in the catalogue.
    scenario
        For a plan: name or path of the scenario whose graph and machine it was made for.
    is_strict
        Whether each figure of a document needs an origin.

    Raises
    ------
    HosimError
        If anything is wrong.
    """
    path = Path(file)
    if file.endswith(formats.SUFFIXES):
        is_plan = formats.sniff(path) != formats.graph_jsonl.SCHEMA and scenario is not None
        return _plan(path, str(scenario)) if is_plan else formats.check(path)
    kind = next((kind for kind in catalog.KINDS if file in catalog.names(kind)), None)
    if kind is not None and not path.is_dir():
        path = catalog.path_of(file, kind)
    elif (not path.suffix and "/" not in file) or path.is_dir():
        rule, do = "a file, or a name in the catalogue, is known", "name the files in it, or see `hosim list`"
        raise ConfigError(file, rule, "a folder" if path.is_dir() else "neither", do)
    document = catalog.load(path, is_strict=is_strict).document
    without_source = document.origins()["mine"]
    note = f", {counted(without_source, 'figure')} without a source" if without_source else ""
    return _summary(document, path, is_strict=is_strict) + note


def _summary(document: Document, path: Path, *, is_strict: bool) -> str:
    if isinstance(document, Scenario):
        return f"scenario, {_scenario(document, path, is_strict=is_strict)}"
    if isinstance(document, StudyDocument):
        return f"study, {counted(points_in(path), 'point')}"
    if isinstance(document, Workload):
        return f"workload, {_workload(document, path)}"
    machine = cast(Hardware, document)
    sizes = {"device": machine.topology.devices, "tier": len(machine.tiers), "link": len(machine.links)}
    return f"hardware, {_sizes(sizes | {'fabric': len(machine.fabrics)})}{_idle(told(own_unread(machine)))}"


def _idle(line: str | None) -> str:
    return f"; {line.removesuffix('.')}" if line else ""


def _sizes(sizes: dict[str, int]) -> str:
    return ", ".join(counted(count, noun) for noun, count in sizes.items() if count)


def _workload(workload: Workload, path: Path) -> str:
    if workload.graph is not None:
        job = builders.build_job(workload, path.parent, partial(formats.read_graph, views=workload.views))
        return formats.graph_jsonl.summary(job.graphs[0])
    if workload.requests is not None and workload.requests.file is not None:
        stream = formats.read_requests(path.parent / workload.requests.file, workload.requests.count)
        return counted(len(stream.requests), "request")
    builders.check(workload)
    return "a model" if workload.requests is None else "requests"


def _scenario(scenario: Scenario, path: Path, *, is_strict: bool) -> str:
    loaded = catalog.resolve(path)
    for kind in ("hardware", "workload"):
        catalog.load(loaded.paths[kind], is_strict=is_strict)
    if scenario.scaling:
        points_of(loaded).check()
    if loaded.workload.requests is not None:
        rows, stream, _ = read_served(loaded)
        idle = _idle(idle_line(smallest(loaded), is_served=True))
        return _sizes({"row": len(rows), "request": len(stream.requests)}) + idle
    case = prepare(loaded)
    decide = case.rows()
    for choice in (choice for choice in scenario.policies if choice.is_file):
        for task in case.tasks:
            _check_plan(case, task, decide[choice.row](task.problem))
    sizes = {"row": len(decide), "op": len(case.graph.ops), "tensor": len(case.graph.tensors)}
    return _sizes(sizes) + _idle(idle_line(case))


def _plan(path: Path, scenario: str) -> str:
    """Check a plan against a scenario; also say how much it holds in the compute tier, as issued."""
    case = prepare(catalog.resolve(scenario))
    names = zip(plan_names(case.job.labels), folder_names(case.job.labels).values(), case.tasks, strict=True)
    matching = (task for file, folder, task in names if path.name == file or path.parent.name == folder)
    task = next(matching, case.tasks[0])
    problem, plan = task.problem, formats.read_plan(path, task.graph, task.problem.tiers)
    _check_plan(case, task, replace(plan, file=path.name))
    most = max(issued_bytes(task.graph, plan, problem.compute_tier))
    budget, tier = problem.budget_bytes, problem.tiers[problem.compute_tier]
    held = f"as issued it holds up to {human(most, 'B')} in {tier}, the budget is {human(budget, 'B')}"
    blocks = ": it must wait for room, and may block itself" if most > budget else ""
    return f"{formats.check(path)} for {case.loaded.scenario.name}; {held}{blocks}"


def _check_plan(case: Case, task: Task, plan: Plan) -> None:
    """Check a plan against its graph, with the draws of dynamic reads of its first rank."""
    referee.check_plan(task.graph, case.hardware, plan, task.pinned, task.draws(task.ranks[0]))
