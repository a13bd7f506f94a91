"""The output folder of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator import catalog, formats
from simulator.report import files
from simulator.report.html import Story
from simulator.report.names import folder_names, plan_names
from simulator.scenario import PolicyChoice

if TYPE_CHECKING:
    from simulator.run.results import Result, Results


def write(results: Results, out: Path) -> None:
    """Write all results of a run.

    Parameters
    ----------
    results
        The results.
    out
        The folder, which is replaced as a whole.
    """
    with files.replaced(out) as folder:
        _fill(results, folder)


def _fill(results: Results, folder: Path) -> None:
    names = folder_names(list(results))
    files.write_texts(folder, _documents(results, names))
    graph = results.case.loaded.paths.get("graph")
    if graph is not None:
        (folder / _graph_name(graph)).write_bytes(graph.read_bytes())
    scenario, verdicts = results.case.loaded.scenario, [asdict(v) for v in results.expectations]
    claim = scenario.claim.model_dump() if scenario.claim else None
    story = Story(scenario.name, scenario.title, tuple(results.sentences), results.provenance, tuple(verdicts), claim)
    files.write_rows(folder, list(results.values()), story, _write_tables)
    more = {"sentences": results.sentences, "expectations": verdicts, "provenance": results.provenance}
    files.write_summary(folder, [row.summary for row in results.values()], more)


def _write_tables(row: Result, folder: Path) -> None:
    names = plan_names(row.job.labels)
    for name, graph, plan in zip(names, row.job.graphs, row.recordings, strict=True):
        formats.plan_jsonl.write(plan, graph, folder / name)
    for table in ("spans", "waits", "memory", *(["ranks"] if row.job.ranks > 1 else [])):
        getattr(row, table).to_csv(folder / f"{table}.csv", index=False, lineterminator="\n")


def _documents(results: Results, folders: Mapping[str, str]) -> dict[str, str]:
    """The three documents as they were run; together with the plans beside them they give the same rows again."""
    loaded = results.case.loaded
    written = {choice.row: choice for choice in loaded.scenario.policies}
    choices = []
    for label, row in results.items():
        choice = written.get(label)
        if (choice is None or choice.is_file) and row.trace is not None:
            name = "plan.jsonl" if len(row.plans) == 1 else "plan-*.jsonl"
            choice = PolicyChoice(policy=f"{folders[label]}/{name}", label=label)
        if choice is not None:
            choices.append(choice)
    changes: dict[str, Any] = {"hardware": "hardware.yaml", "workload": "workload.yaml"}
    if choices:
        rows = {choice.row for choice in choices}
        expected = () if results.case.is_changed else loaded.scenario.expect
        kept = (e for e in expected if {e.row, e.faster_than or e.row} <= rows)
        changes |= {"policies": tuple(choices), "expect": tuple(kept)}
    workload = loaded.workload
    if "graph" in loaded.paths:
        workload = workload.model_copy(update={"graph": _graph_name(loaded.paths["graph"])})
    return {
        "scenario.yaml": catalog.dump(loaded.scenario.model_copy(update=changes)),
        "hardware.yaml": catalog.dump(loaded.hardware),
        "workload.yaml": catalog.dump(workload),
    }


def _graph_name(path: Path) -> str:
    return f"graph.json{path.name.rpartition('.json')[2]}"
