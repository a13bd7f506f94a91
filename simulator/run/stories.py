"""What `hosim plan`, `graph` and `layout` do: explain a plan, and write a job as files or as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any

from simulator import catalog, formats
from simulator.builders import build_job, layouts
from simulator.catalog import Named
from simulator.errors import CapacityError, insist
from simulator.formats import graph_jsonl
from simulator.graph import Graph, Job
from simulator.importers.imported import Imported
from simulator.importers.kineto import UNTIMED
from simulator.plan import Plan
from simulator.policies import static
from simulator.policies.decide import decided
from simulator.policies.problem import Problem
from simulator.policies.static.explanation import Explanation, explained
from simulator.report import card, decisions, files
from simulator.report.files import folder_names
from simulator.report.sentences import crowded
from simulator.report.words import percent
from simulator.run.case import prepare
from simulator.run.results import Result
from simulator.run.row import notes, row_of, rows_of
from simulator.run.sweep import Progress, silent
from simulator.scenario import Scenario
from simulator.units import counted, human, nearest
from simulator.workload import Workload
from simulator.workload.job import JobDocument


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan of a scenario, with its reasons if its policy gives any.

    Attributes
    ----------
    result
        The row, as in `hosim run`.
    explanations
        The reasons of the plan of each graph of the job; none for policies other than `static`.
    """

    result: Result
    explanations: tuple[Explanation, ...]

    def text(self, tensor: str | None = None) -> str:
        """Explain the plan, or one tensor of it in full.

        Parameters
        ----------
        tensor
            Name of the tensor; if several graphs have it, that of the first is explained.

        Raises
        ------
        ConfigError
            If there is no such tensor, or the policy gives no reasons.
        """
        if tensor is not None:
            rule = "the policy gives reasons for each tensor"
            insist(self.explanations, "--tensor", rule, repr(self.result.label), "plan with 'static'")
            having = (e for e in self.explanations if tensor in {t.name for t in e.augmented.problem.graph.tensors})
            return decisions.tensor_text(next(having, self.explanations[0]), tensor)
        texts = [decisions.plan_text(explanation) for explanation in self.explanations]
        if len(texts) > 1:
            texts = [f"{task.label}\n\n{text}" for task, text in zip(self.result.case.tasks, texts, strict=True)]
        is_whole = not (self.result.case.graph.on_host or self.result.case.graph.in_place)
        who = "Only 'static' explains" if is_whole else "No policy with host ops or reads in place explains"
        return "\n\n".join((self._headline(), *(texts or [f"{who} its plan."])))

    def _headline(self) -> str:
        row, case = self.result.summary, self.result.case
        tier, of = case.hardware.compute_tier, f"{self.result.label} on {case.loaded.scenario.name}"
        if row["status"] != "ok":
            return "\n".join((f"{of}: {row['status']}", *self.result.blocked))
        gap = "no bound known"
        if row.get("bound_ns") is not None:
            gap = f"at most {percent(row['gap_fraction'])} above the best plan ({row['bounded_by']})"
        peak, budget = human(row[f"peak_{tier}_bytes"], "B"), human(case.problem.budget_bytes, "B")
        lines = [f"{of}: {human(row['step_ns'], 'ns')} a step, {gap}", f"peak in {tier}: {peak} of {budget}"]
        return "\n".join((*lines, *notes(case, self.result.recordings), *crowded([self.result])))

    @property
    def file(self) -> str:
        """Path of the plan in the written folder, as a row of a scenario names it; ``*`` stands for each graph."""
        return "plan.jsonl" if len(self.result.case.tasks) == 1 else "*/plan.jsonl"

    def write(self, out: Path) -> None:
        """Write the plan, the augmented graph, its reasons as tables and text, and the timeline of its replay.

        Parameters
        ----------
        out
            The folder, which is replaced as a whole. If the job has several graphs, each has a folder of its own in it.
        """
        from simulator.report.drawing import picture  # noqa: PLC0415 - most plans are not drawn

        with files.replaced(out) as folder:
            tasks = self.result.case.tasks
            names = [""] if len(tasks) == 1 else folder_names(self.result.job.labels).values()
            for graph, name in enumerate(names):
                inner = folder / name
                inner.mkdir(exist_ok=True)
                formats.plan_jsonl.write(self.result.recordings[graph], tasks[graph].graph, inner / "plan.jsonl")
                for why in self.explanations[graph : graph + 1]:
                    graph_jsonl.write_augmented(why.augmented, inner / "augmented.json")
                    decisions.write(why, inner)
            (folder / "plan.png").write_bytes(picture(self.result.timeline()).png())
            (folder / "explanation.txt").write_text(self.text() + "\n", encoding="utf-8")
            files.write_summary(folder, [self.result.summary], {})


def plan(
    scenario: Named,
    policy: str = "static",
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    progress: Progress | None = None,
) -> Planned:
    """Plan a scenario with one policy, and explain the plan.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, the document itself, or what was loaded from it.
    policy
        A row of the scenario, or a policy with its default options.
    set
        Changes to the machine, and to the workload (``workload.batch``).
    progress
        Called now and then.

    Raises
    ------
    HosimError
        If a document, an option or the plan is wrong, or nothing fits.
    """
    case = prepare(catalog.resolve(scenario, set), is_changed=bool(set))
    rows = case.rows([policy])
    insist(len(rows) == 1, "--policy", "one row is planned", ", ".join(rows), nearest(policy, tuple(rows)))
    ((label, decide),) = rows.items()
    explanations: list[Explanation] = []

    def explain(options: static.Options, problem: Problem) -> Plan:
        explanations.append(explained(problem, options))
        return explanations[-1].plan

    is_whole = not (case.graph.on_host or case.graph.in_place)
    if is_whole and (options := case.static_options(label)) is not None:
        decide = partial(decided, case.choice(label), partial(explain, options))
    result = row_of(case, label, decide, progress or silent)
    if result.shortfall is not None:
        raise CapacityError(result.shortfall)
    chosen = ((plan, why) for plan in result.plans for why in explanations if why.plan.actions is plan.actions)
    return Planned(result, tuple(replace(why, plan=plan) for plan, why in chosen))


_WORKLOAD, _OF_GRAPHS = "workload.yaml", r"workload\.yaml|graph(-.+)?\.jsonl"


def write_graphs(workload: str | Path, out: Path, *, force: bool = False) -> list[str]:
    """Write each graph of a workload as `hosim-graph/1`; if it has only one, also a document that runs the file.

    Parameters
    ----------
    workload
        A name in the catalogue, or a path that ends in ``.yaml``.
    out
        The folder.
    force
        Whether one with such files is replaced.

    Returns
    -------
    list of str
        A line for each file: where it lies and what is in it.

    Raises
    ------
    ConfigError
        If the document is wrong, or the folder holds something else.
    """
    files.check_target(out, _OF_GRAPHS, force=force)
    document, job = _document_and_job(workload)
    names, lines = folder_names(job.labels).values() if len(job.graphs) > 1 else [""], list[str]()
    with files.replaced(out, _OF_GRAPHS, force=force) as folder:
        for graph, name in zip(job.graphs, names, strict=True):
            file = f"graph-{name}.jsonl" if name else "graph.jsonl"
            graph_jsonl.write(graph, folder / file)
            lines.append(f"{out / file}: {counted(len(graph.ops), 'op')}, {counted(len(graph.tensors), 'tensor')}")
        if len(job.graphs) == 1:
            fields = {"name": document.name, "title": document.title, "graph": "graph.jsonl"}
            assumed = {"steps": "as in the workload that the graph was made from"}
            of_file = Workload.model_validate({**fields, "steps": job.graphs[0].steps, "assumed": assumed})
            (folder / _WORKLOAD).write_text(catalog.dump(of_file), encoding="utf-8")
            lines.append(f"{out / _WORKLOAD}: a workload that runs {out / 'graph.jsonl'}")
    return lines


def layout(workload: str | Path, *, as_json: bool = False) -> str:
    """Describe how a workload is spread over its ranks, in tables, or as JSON with sizes in bytes.

    Parameters
    ----------
    workload
        A name in the catalogue, or a path that ends in ``.yaml``.
    as_json
        Whether to return JSON.

    Raises
    ------
    ConfigError
        If the document is wrong, or the model cannot be spread so.
    """
    document, job = _document_and_job(workload)
    if as_json:
        return dumps(card.layout_data(job, layouts(document)), indent=2)
    return card.layout_text(job, document, layouts(document))


def _document_and_job(workload: str | Path) -> tuple[Workload | JobDocument, Job]:
    entry = catalog.load(workload, "workload")
    document: Workload | JobDocument = entry.document
    return document, build_job(document, entry.path.parent, formats.read_graph)


_ANY_MACHINE = "h100_sxm"
"""Ops have their recorded times; the machine gets unlimited memory, and a host that waits for nothing."""


def replay_recording(graph: Graph) -> tuple[int, int]:
    """Replay one step with all tensors in the compute tier; return its time [ns] and its peak [B].

    Parameters
    ----------
    graph
        One step; ops without a recorded time take that of a roofline.

    Raises
    ------
    HosimError
        If it cannot be replayed.
    """
    about = {"schema": "hosim/scenario/1", "name": "recorded", "title": "A step as recorded"}
    document = about | {"hardware": _ANY_MACHINE, "workload": "tiny_train", "policies": ["resident"]}
    changes = {"tiers.hbm.capacity": "inf", "host.fixed.launch": "0 ns", "host.queue_depth": len(graph.ops)}
    loaded = catalog.resolve(Scenario.model_validate(document), changes)
    case = prepare(loaded, Job.of(graph), is_changed=True, with_bounds=False)
    row = rows_of(case)[0].summary
    return row["step_ns"], row["peak_hbm_bytes"]


_AGREES, _MARKED = 0.01, 0.1
"""Shares by which a replay may miss its recording, and a recording its own marks: docs/evidence/recordings.md."""


def step_shares(graph: Graph) -> dict[str, float]:
    """Return who explains which share of a recorded step: the ops that ran, the host's launches, or nobody (ops idle).

    Ops `host` and `idle` fill a recorded step up; a share is that of the replay in which they take no time. Parameters
    and errors as for `replay_recording`.
    """
    took_ns = list[int]()
    for names in (("/idle", "/host"), ("/idle",), ()):  # kernels of such names, which are repeatable, keep their times
        are_spared = (op.name.endswith(names) and not op.repeatable for op in graph.ops)
        ops = [replace(op, duration_ns=0) if spared else op for op, spared in zip(graph.ops, are_spared, strict=True)]
        took_ns.append(replay_recording(replace(graph, ops=tuple(ops)))[0])
    ran_ns, launched_ns, step_ns = took_ns
    parts = {"ops that ran": ran_ns, "launches of the host": launched_ns - ran_ns, "idle": step_ns - launched_ns}
    return {name: part_ns / max(1, step_ns) for name, part_ns in parts.items()}


def as_recorded(graph: Graph, recorded_ns: int, untimed: int = 0, *, peak_bytes: int = 0, marked_ns: int = 0) -> str:
    """Replay a recorded step, and return how far it is off as text, with warnings where recording and replay disagree.

    Parameters
    ----------
    graph, recorded_ns
        One step, and its recorded time [ns].
    untimed
        Number of kernels, copies and fills that have no time in the recording; neither time has them.
    peak_bytes, marked_ns
        Recorded peak of the memory [B], and time between the marks of the program [ns]; 0 if unknown.

    Raises
    ------
    HosimError
        If it cannot be replayed.
    """
    step_ns, held_bytes = replay_recording(graph)
    times = f"replayed as recorded: {human(step_ns, 'ns')} a step, recorded {human(recorded_ns, 'ns')}"
    peak = f"peak {human(held_bytes, 'B')}" if held_bytes else "no memory in it"
    peak += f", recorded {human(peak_bytes, 'B')}" if peak_bytes else ""
    without = f"; both lack {untimed:,} kernels, copies and fills without a time" if untimed else ""
    contradictions = (
        _contradiction(step_ns, recorded_ns, "ns", "replay and recording of the step", _AGREES),
        _contradiction(held_bytes, peak_bytes, "B", "peaks of replay and recording", _AGREES),
        _contradiction(recorded_ns, marked_ns, "ns", "the step on the device and the step from mark to mark", _MARKED),
    )
    off = f"{100 * (step_ns / recorded_ns - 1):+.2f} %"
    return "\n".join((f"{times} ({off}), {peak}{without}", *filter(None, contradictions)))


def _contradiction(found: int, recorded: int, unit: str, both: str, most: float) -> str:
    """Return a warning if two figures, if the second is known, differ by more than a share."""
    off = found / recorded - 1 if recorded else 0
    shown = f"{human(found, unit)} and {human(recorded, unit)} ({100 * off:+.1f} %)"
    return f"warning: {both} differ: {shown}" if abs(off) > most else ""


def replayed(imported: Imported) -> dict[str, Any]:
    """Return what the replay of an imported step tells: its text, who explains it, warnings; nothing without times.

    Parameters and errors as for `replay_recording`.
    """
    if imported.graph is None or not imported.recorded_ns:
        return {}
    figures = {"peak_bytes": imported.recorded_bytes, "marked_ns": imported.marked_ns}
    text = as_recorded(imported.graph, imported.recorded_ns, imported.dropped.get(UNTIMED, 0), **figures)
    replay, *warnings = text.splitlines()
    return {"explained": step_shares(imported.graph), "replay": replay, "warnings": warnings}
