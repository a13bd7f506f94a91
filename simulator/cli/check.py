"""Reads and validates files without running anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import cast

from simulator import builders, catalog, formats, referee
from simulator.catalog.text import validated
from simulator.document import Document
from simulator.errors import ConfigError, PlanError, insist
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.metrics import columns
from simulator.offsets import issued_bytes
from simulator.plan import COMPUTE, COPY, DETACH, Plan
from simulator.referee import Fault
from simulator.report.files import folder_names, plan_names
from simulator.run.case import Case, prepare
from simulator.run.effects import idle_line, own_unread, told
from simulator.run.grid import points_in
from simulator.run.task import Task
from simulator.scenario import Scenario
from simulator.scenario.study import StudyDocument
from simulator.serving import read_served
from simulator.serving.replays import smallest
from simulator.software import Software
from simulator.units import counted, human, parse
from simulator.workload import Workload
from simulator.workload.job import JobDocument


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
    if isinstance(document, JobDocument):
        job = builders.build_job(document, path.parent, formats.read_graph)
        return f"job, {_sizes({'program': len(document.programs), 'edge': len(document.edges), 'rank': job.ranks})}"
    if isinstance(document, Software):
        return f"software for {', '.join(document.for_)}"
    machine = cast(Hardware, document)
    columns(machine)  # refuses names that give two figures one column
    sizes = {"device": machine.topology.devices, "tier": len(machine.tiers), "link": len(machine.links)}
    return f"hardware, {_sizes(sizes | {'fabric': len(machine.fabrics)})}{_idle(told(own_unread(machine)))}"


def _idle(line: str | None) -> str:
    return f"; {line.removesuffix('.')}" if line else ""


def _sizes(sizes: dict[str, int]) -> str:
    return ", ".join(counted(count, noun) for noun, count in sizes.items() if count)


def _workload(workload: Workload, path: Path) -> str:
    if workload.graph is not None:
        job = builders.build_job(workload, path.parent, formats.read_graph)
        return formats.graph_jsonl.summary(job.graphs[0])
    if workload.requests is not None and workload.requests.file is not None:
        stream = formats.read_requests(path.parent / workload.requests.file, workload.requests.count)
        return counted(len(stream.requests), "request")
    builders.check(workload)
    return "a model" if workload.requests is None else "requests"


def _scenario(scenario: Scenario, path: Path, *, is_strict: bool) -> str:
    loaded = catalog.resolve(path)
    for kind in ("hardware", "workload", *(["software"] if loaded.software else [])):
        catalog.load(loaded.paths[kind], is_strict=is_strict)
    if scenario.sweep:
        points_in(path)
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
    case, task, plan = plan_for(path, scenario)
    problem = task.problem
    most = max(issued_bytes(task.graph, plan, problem.compute_tier))
    budget, tier = problem.budget_bytes, problem.tiers[problem.compute_tier]
    held = f"as issued it holds up to {human(most, 'B')} of {tier}, of a budget of {human(budget, 'B')}"
    blocks = ": it must wait for room, and may block itself" if most > budget else ""
    return f"{formats.check(path)} for {case.loaded.scenario.name}; {held}{blocks}"


def plan_for(path: Path, scenario: catalog.Named, report: referee.Report = referee.refuse) -> tuple[Case, Task, Plan]:
    """Read and check a plan, and the case of a scenario with the task that it is for, by the names of file and folder.

    Parameters
    ----------
    path
        The file.
    scenario
        Name or path of the scenario, or the scenario.
    report
        Takes each fault of the plan; by default the first is raised.
    """
    case = prepare(catalog.resolve(scenario), with_bounds=False)
    names = zip(plan_names(case.job.labels), folder_names(case.job.labels).values(), case.tasks, strict=True)
    matching = (task for file, folder, task in names if path.name == file or path.parent.name == folder)
    task = next(matching, case.tasks[0])
    plan = replace(formats.read_plan(path, task.graph, task.problem.tiers, case.hardware.roles), file=path.name)
    _check_plan(case, task, plan, report)
    return case, task, plan


def _check_plan(case: Case, task: Task, plan: Plan, report: referee.Report = referee.refuse) -> None:
    """Check a plan against its graph, with the draws of dynamic reads of its first rank."""
    referee.check_plan(task.graph, case.hardware, plan, task.pinned, task.draws(task.ranks[0]), report)


def lint(path: Path, scenario: str | None, graph: Path | None, hardware: str | None, budget: str | None) -> list[Fault]:
    """Find all that is wrong with a plan, or of no use in it; each fault of a kind about a tensor or an op once.

    Parameters
    ----------
    path
        The plan.
    scenario
        Name or path of the scenario that it was made for; or else:
    graph, hardware
        File of the graph, and name or path of the machine; default: the plan's tiers, the first of which computes, all
        linked, and large.
    budget
        Room of the compute tier, if another than theirs.
    """
    faults = list[Fault]()
    try:
        if scenario is not None:
            case, task, plan = plan_for(path, scenario, faults.append)
            ops, machine, room = task.graph, case.hardware, task.problem.budget_bytes
        else:
            ops = formats.read_graph(cast(Path, graph))
            machine = _plain(path) if hardware is None else cast(Hardware, catalog.load(hardware, "hardware").document)
            plan = replace(formats.read_plan(path, ops, machine.tier_names, machine.roles), file=path.name)
            room = machine.tiers[machine.compute_tier].usable_bytes
            referee.check_plan(ops, machine, plan, report=faults.append)
    except PlanError as error:  # of its homes, without which no action can be judged
        return [Fault("wrong home", -1, "", "", error)]
    room = room if budget is None else parse(budget, "B")
    faults = [_with_later_copy(fault, ops, machine, plan) for fault in faults]
    faults += (*_unused_copies(ops, plan, machine), *_above_budget(ops, plan, machine, room))
    return [*{(fault.kind, fault.tensor or fault.op): fault for fault in reversed(faults)}.values()][::-1]


def _with_later_copy(fault: Fault, graph: Graph, machine: Hardware, plan: Plan) -> Fault:
    """Say of a use before the prefetch which later action is the prefetch, if one is."""
    if fault.kind != "use before the prefetch" or plan.fixed is None:
        return fault
    for index, (kind, tensor, _, target) in enumerate(plan.fixed):
        is_of_it = kind == COPY and graph.tensors[tensor].name == fault.tensor and target == machine.compute_tier_id
        if index > fault.action and is_of_it:
            where, must, found, _ = fault.error.args
            found += f"; it comes by action {index:,}, which is issued behind this use"
            return fault._replace(error=PlanError(where, must, found, f"issue action {index:,} before this one"))
    return fault


def _unused_copies(graph: Graph, plan: Plan, machine: Hardware) -> Iterator[Fault]:
    """Name copies whose places are detached, or made stale, before anything reads them."""
    fresh = dict[tuple[int, int], int]()  # place -> the copy that filled it, which nothing has read yet

    def wasted(index: int, tensor: int, tier: int, by: str) -> Fault:
        (_, _, source, target), name = [*(plan.fixed or ())][index], graph.tensors[tensor].name
        where = f"plan {plan.name!r}, action {index:,} (copy {name} {plan.tiers[source]} -> {plan.tiers[target]})"
        must, found = "somebody waits for a copy", f"that nothing reads {name!r} in {plan.tiers[tier]} before {by}"
        error = PlanError(where, must, found, "drop the copy and that detach, or detach after the use")
        return Fault("copy that nobody waits for", index, "", name, error)

    for index, (kind, a, b, c) in enumerate(plan.fixed or ()):
        if kind == COPY:
            fresh.pop((a, b), None)
            fresh[a, c] = index
        elif kind == DETACH and (a, b) in fresh:
            yield wasted(fresh.pop((a, b)), a, b, f"action {index:,} detaches it")
        elif kind == COMPUTE:
            for tensor in graph.ops[a].reads:
                fresh.pop((tensor, machine.host_tier_id if a in graph.on_host else machine.compute_tier_id), None)
            for tensor, tier in [place for place in fresh if place[0] in graph.ops[a].writes]:
                yield wasted(fresh.pop((tensor, tier)), tensor, tier, f"op {graph.ops[a].name!r} writes it anew")


def _above_budget(graph: Graph, plan: Plan, machine: Hardware, room: int | float) -> Iterator[Fault]:
    """Name the first action of a plan with which it holds more in a tier than there is room for, as issued."""
    codes = [*(plan.fixed or ())]
    for tier, name in enumerate(plan.tiers):
        held = issued_bytes(graph, plan, tier)
        most = room if tier == machine.compute_tier_id else machine.tiers[name].usable_bytes
        first = next((index for index, size in enumerate(held[1:-1]) if size > most), None)
        if first is None:
            continue
        kind, a, _, _ = codes[first]
        op, tensors = (graph.ops[a].name, graph.ops[a].writes) if kind == COMPUTE else ("", (a,))
        where = f"plan {plan.name!r}, action {first:,} ({referee.describe(graph, plan.tiers, codes[first])})"
        found = f"{human(held[first + 1], 'B')} with this action, and up to {human(max(held), 'B')}"
        must = f"all places in {name} fit there as issued ({human(most, 'B')})"
        error = PlanError(where, must, found, "detach something before it, or give it more room")
        yield Fault("budget exceeded", first, op, graph.tensors[tensors[0]].name if tensors else "", error)


def _plain(path: Path) -> Hardware:
    """Return a machine of the tiers that a plan names, the first of which computes."""
    formats.check(path)
    tiers = formats.jsonl.first(path).get("tiers") or []
    must, do = "without a machine, a plan's header names its tiers", "add them, or say --hardware or --scenario"
    insist(tiers, f"{path}:1, tiers", must, "none", do)
    rate = {"bandwidth": "1 GB/s"}
    links = {f"link{i}": {"source": a, "target": b} | rate for i, (a, b) in enumerate(permutations(tiers, 2))}
    about = {"name": "plain", "title": "The tiers of a plan", "compute_tier": tiers[0], "links": links}
    about |= {"tiers": {tier: {"capacity": "inf", **rate} for tier in tiers}, "compute": {"peak": {"bf16": "1 FLOP/s"}}}
    return validated(Hardware, about, "plan", lambda *keys: f"{path}:1, {'.'.join(keys)}")
