"""Graphs of hosim's own formats: a ``hosim-graph/1`` from elsewhere, or a recorded ``residency-trace/1``."""

from __future__ import annotations

from pathlib import Path

from simulator import formats
from simulator.formats import residency_json
from simulator.formats.residency_json import Views
from simulator.importers.imported import Imported, named
from simulator.units import human
from simulator.workload import Workload


def read_graph(source: str | Path, *, views: Views = "reads") -> Imported:
    """Read a graph file, and make a workload that runs it.

    Parameters
    ----------
    source
        A ``hosim-graph/1`` (JSON lines) or a ``residency-trace/1`` (JSON).
    views
        Whether in a recorded trace an op that only makes a view of a tensor reads it, or writes it too.

    Raises
    ------
    ConfigError
        If the file is wrong.
    """
    path = Path(source)
    graph, is_trace = formats.read_graph(path, views), formats.sniff(path) == residency_json.SCHEMA
    measured_ns = sum(op.duration_ns or 0 for op in graph.ops)
    kept = {"measured times of ops": human(measured_ns, "ns")} if measured_ns else {}
    derived = [f"The graph is that of {path.name}; it runs {'once' if is_trace else 'as often as the file says'}."]
    dropped: dict[str, int] = {}
    if is_trace:
        derived.append(f"Ops that only make a view {'read' if views == 'reads' else 'write'} what they view (--views).")
        dropped = residency_json.unused(path)
    workload = Workload(name=named(graph.name), title=f"The graph of {path.name}", graph=".jsonl")
    return Imported({".yaml": workload, ".jsonl": graph}, kept, tuple(derived), dropped)
