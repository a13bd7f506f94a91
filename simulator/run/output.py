"""The output folder of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator import catalog, formats
from simulator.processes import Aside, aside
from simulator.report import files
from simulator.report.files import folder_names, plan_names
from simulator.report.html import Pages, Story
from simulator.scenario import DrawsOrigin, PolicyChoice

if TYPE_CHECKING:
    from simulator.run.results import Result, Results


_FORGOTTEN = "No trace was kept (trace: none), so that there are no pictures, tables, plans and traces of the rows."
"""What the report then says."""
_DRAWS = "draws.csv"
"""Name of the file from which draws were read."""


class Output:
    """The folder of a run that is being filled: each row when it is there, and at the end what is about all.

    Parameters
    ----------
    folder
        An existing folder.
    calls
        Runs what writes the rows.
    """

    def __init__(self, folder: Path, calls: Aside) -> None:
        self._folder = folder
        self._pages = Pages(folder, calls, _write_tables)

    def add(self, row: Result) -> None:
        """Begin to write the next row."""
        self._pages.add(row)

    def finish(self, results: Results) -> None:
        """Write what is about all rows, which were added before.

        Parameters
        ----------
        results
            All of them, in the same order.
        """
        folder = self._folder
        files.write_texts(folder, _documents(results, folder_names(list(results))))
        paths = results.case.loaded.paths
        if "graph" in paths:
            (folder / _graph_name(paths["graph"])).write_bytes(paths["graph"].read_bytes())
        if "draws" in paths:
            (folder / _DRAWS).write_bytes(paths["draws"].read_bytes())
        scenario, verdicts = results.case.loaded.scenario, [asdict(v) for v in results.expectations]
        claim = scenario.claim.model_dump() if scenario.claim else None
        forgotten = (_FORGOTTEN,) if scenario.trace == "none" else ()
        told = ((*results.sentences, *forgotten), results.provenance, tuple(verdicts), claim)
        self._pages.report(Story(scenario.name, scenario.title, *told), list(results.values()))
        files.write_summary(folder, [row.summary for row in results.values()], results.more)


@contextmanager
def writing(out: Path) -> Iterator[Output]:
    """Give the output folder of a run, which is complete when the block ends, and absent if it fails.

    Parameters
    ----------
    out
        The folder, which is replaced as a whole.
    """
    with files.replaced(out) as folder, aside() as calls:
        yield Output(folder, calls)


def _write_tables(row: Result, folder: Path) -> None:
    names = plan_names(row.job.labels)
    for name, graph, plan in zip(names, row.job.graphs, row.recordings, strict=True):
        formats.plan_jsonl.write(plan, graph, folder / name)
    for table in ("spans", "waits", "memory", *(["ranks"] if row.job.ranks > 1 else [])):
        row.tables.write(table, folder / f"{table}.csv")


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
    if "draws" in loaded.paths:
        changes["draws"] = DrawsOrigin(file=_DRAWS)
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
