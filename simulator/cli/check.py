"""Reads and validates files without running anything."""

from __future__ import annotations

from dataclasses import replace
from os.path import isdir
from pathlib import Path

from simulator import builders, catalog, formats, referee
from simulator.errors import ConfigError
from simulator.hardware import Hardware
from simulator.offsets import issued_bytes
from simulator.plan import Plan
from simulator.report.files import folder_names, plan_names
from simulator.run.case import Case, prepare
from simulator.run.scaling import points_of
from simulator.run.task import Task
from simulator.scenario import Scenario
from simulator.serving import read_served
from simulator.units import counted, human
from simulator.workload import Workload


def describe(file: str, scenario: str | None = None) -> str:
    """Check one file and say in a line what is in it.

    Parameters
    ----------
    file
        A path; or the name of a document in the catalogue.
    scenario
        For a plan: name or path of the scenario whose graph and machine it was made for.

    Raises
    ------
    HosimError
        If anything is wrong.
    """
    if file.endswith(formats.SUFFIXES):
        return _steps_or_graph(Path(file), scenario)
    if not isdir(file) and (Path(file).suffix or "/" in file):
        return _document(catalog.load(Path(file)).document, Path(file))
    for kind in catalog.KINDS:
        if file in catalog.names(kind):
            return _document(catalog.load(file, kind).document, catalog.path_of(file, kind))
    found, do = ("a folder", "name the files in it") if isdir(file) else ("neither", "correct it")
    raise ConfigError(file, "a file, or a name in the catalogue, is known", found, do)


def _document(document: object, path: Path) -> str:
    if isinstance(document, Scenario):
        loaded = catalog.resolve(path)
        if document.scaling:
            points_of(loaded).check()
        if loaded.workload.requests is not None:
            rows, come, _ = read_served(loaded)
            return f"scenario, {counted(len(rows), 'row')}, {counted(len(come.requests), 'request')}: ok"
        case = prepare(loaded)
        decide = case.rows()
        for choice in document.policies:
            if choice.is_file:
                for task in case.tasks:
                    _check_plan(case, task, decide[choice.row](task.problem))
        sizes = {"row": len(decide), "op": len(case.graph.ops), "tensor": len(case.graph.tensors)}
        return f"scenario, {', '.join(counted(number, noun) for noun, number in sizes.items())}: ok"
    if isinstance(document, Hardware):
        return f"hardware, {_machine(document)}: ok"
    if isinstance(document, Workload) and document.graph is not None:
        return f"workload, {formats.check(path.parent / document.graph)}: ok"
    if isinstance(document, Workload) and document.requests is not None and document.requests.file is not None:
        come = formats.read_requests(path.parent / document.requests.file, document.requests.count)
        return f"workload, {counted(len(come.requests), 'request')}: ok"
    if isinstance(document, Workload):
        builders.check(document)
    return "workload: ok"


def _machine(hardware: Hardware) -> str:
    sizes = [(hardware.topology.devices, "device")] if hardware.topology.devices > 1 else []
    sizes += [(len(hardware.tiers), "tier"), (len(hardware.links), "link")]
    sizes += [(len(hardware.fabrics), "fabric")] if hardware.fabrics else []
    return ", ".join(counted(number, noun) for number, noun in sizes)


def _steps_or_graph(path: Path, scenario: str | None) -> str:
    schema = formats.sniff(path)
    if schema == formats.graph_jsonl.SCHEMA or (scenario is None and schema != formats.plan_jsonl.SCHEMA):
        return f"{formats.check(path)}: ok"
    if scenario is None:
        return f"{formats.check(path)}: ok by itself; name its --scenario to check it against the graph and the machine"
    case = prepare(catalog.resolve(scenario))
    task = _whose(path, case)
    plan = formats.read_plan(path, task.graph, task.problem.tiers)
    _check_plan(case, task, replace(plan, file=path.name))
    return f"{formats.check(path)}: ok for {case.loaded.scenario.name}; {_held(task, plan)}"


def _held(task: Task, plan: Plan) -> str:
    """How much a plan holds in the compute tier, as issued, against the budget."""
    problem = task.problem
    tier, budget = problem.tiers[problem.compute_tier], problem.budget_bytes
    most = max(issued_bytes(task.graph, plan, problem.compute_tier))
    said = f"as issued it holds up to {human(most, 'B')} in {tier}, the budget is {human(budget, 'B')}"
    return f"{said}: it must wait for room, and may block itself" if most > budget else said


def _check_plan(case: Case, task: Task, plan: Plan) -> None:
    """Hold a plan against the graph, with what late reads of its first rank choose."""
    referee.check_plan(task.graph, case.hardware, plan, task.pinned, task.draws(task.ranks[0]))


def _whose(path: Path, case: Case) -> Task:
    """The graph that a plan is of: of several, the one that its file or its folder is named for."""
    tasks = zip(plan_names(case.job.labels), folder_names(case.job.labels).values(), case.tasks, strict=True)
    return next(
        (task for file, folder, task in tasks if path.name == file or path.parent.name == folder), case.tasks[0]
    )
