"""The stories of `hosim graph` and `hosim layout`: the job of a workload as files, and what each of its ranks holds."""

from __future__ import annotations

from functools import partial
from json import dumps
from pathlib import Path

from simulator import catalog, formats
from simulator.builders import build_job, layouts
from simulator.formats import graph_jsonl
from simulator.graph import Job
from simulator.report import files, layout_text
from simulator.report.files import folder_names
from simulator.units import counted
from simulator.workload import Workload

_WORKLOAD = "workload.yaml"


def write_graphs(workload: str | Path, out: Path) -> list[str]:
    """Write each graph of a workload as `hosim-graph/1`; of a workload with one, also a document that runs the file.

    Parameters
    ----------
    workload
        A name in the catalogue, or a path that ends in ``.yaml``.
    out
        The folder, which is replaced as a whole.

    Returns
    -------
    list of str
        A line for each file: where it lies and what is in it.

    Raises
    ------
    ConfigError
        If the document is wrong, or the folder holds something else.
    """
    files.check_target(out)
    found, job = _built(workload)
    names = folder_names(job.labels).values() if len(job.graphs) > 1 else [""]
    said = []
    with files.replaced(out) as folder:
        for graph, name in zip(job.graphs, names, strict=True):
            file = f"graph-{name}.jsonl" if name else "graph.jsonl"
            graph_jsonl.write(graph, folder / file)
            said.append(f"{out / file}: {counted(len(graph.ops), 'op')}, {counted(len(graph.tensors), 'tensor')}")
        if len(job.graphs) == 1:
            (folder / _WORKLOAD).write_text(catalog.dump(_of_file(found, job.graphs[0].steps)), encoding="utf-8")
            said.append(f"{out / _WORKLOAD}: a workload that runs {out / 'graph.jsonl'}")
    return said


def _of_file(workload: Workload, steps: int) -> Workload:
    fields = {"name": workload.name, "title": workload.title, "graph": "graph.jsonl", "steps": steps}
    return Workload.model_validate({**fields, "assumed": {"steps": "as in the workload that the graph was made from"}})


def layout(workload: str | Path, *, as_json: bool = False) -> str:
    """Spread a workload over its ranks, and tell it in tables, or as JSON with sizes in bytes.

    Parameters
    ----------
    workload
        A name in the catalogue, or a path that ends in ``.yaml``.
    as_json
        Whether it is told as JSON.

    Raises
    ------
    ConfigError
        If the document is wrong, or the model cannot be spread like that.
    """
    found, job = _built(workload)
    if as_json:
        return dumps(layout_text.data(job, layouts(found), found.dtypes.element_bytes), indent=2)
    return layout_text.told(job, found, layouts(found))


def _built(workload: str | Path) -> tuple[Workload, Job]:
    entry = catalog.load(workload, "workload")
    found: Workload = entry.document
    return found, build_job(found, entry.path.parent, partial(formats.read_graph, views=found.views))
