"""Builders: a workload becomes a graph.

`MODELS` names the families; a new one is a module with a function from a workload and its model to a graph, and an
entry here. A workload that names a graph file is read by a function that the caller passes in, because builders know
no formats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.builders import llama, residency_acceptance
from simulator.errors import ConfigError
from simulator.graph import Graph, check_run
from simulator.workload import Model, Workload

MODELS: dict[str, Callable[[Workload, Any], Graph]] = {
    "llama": llama.build,
    "residency_acceptance": residency_acceptance.build,
}
"""Model family -> builder."""


def build(
    workload: Workload,
    base_dir: Path | None = None,
    read_graph: Callable[[Path], Graph] | None = None,
) -> Graph:
    """Build the graph of a workload.

    Parameters
    ----------
    workload
        The workload.
    base_dir
        Folder of its document, which a graph file is relative to; default: the working directory.
    read_graph
        Reads a graph file.

    Returns
    -------
    Graph
        The graph. One from a file runs as often as the workload says, or else as often as the file says.

    Raises
    ------
    ConfigError
        If the graph file is wrong, or it has inputs that a second step would not find, or there are too many ops.
    """
    graph = _build(workload, base_dir, read_graph)
    return graph if workload.outputs == "kept" else replace(graph, outputs=())


def _build(workload: Workload, base_dir: Path | None, read_graph: Callable[[Path], Graph] | None) -> Graph:
    if workload.model is not None:
        model = workload.model
        check_run(_ops(workload, model), workload.steps, f"workload {workload.name}")
        return MODELS[model.family](workload, model)
    if workload.graph is None or read_graph is None:
        raise ConfigError(
            f"workload {workload.name}", "a graph comes from a model or a file", "neither", "name one of the two"
        )
    graph = read_graph((base_dir or Path()) / workload.graph)
    if "steps" in workload.model_fields_set:
        return graph.repeated(workload.steps, f"workload {workload.name}")
    return graph


def _ops(workload: Workload, model: Model) -> int:
    """Number of ops, from models of one and of two layers: every layer has as many."""
    once, build_model = workload.model_copy(update={"steps": 1}), MODELS[model.family]
    one, two = (len(build_model(once, model.model_copy(update={"layers": n})).ops) for n in (1, 2))
    return one + (model.layers - 1) * (two - one)
