"""Builders: a workload becomes a job, which is one graph for all ranks, or several.

`MODELS` names the families; a new one is a module with a function from a workload and its model to a job, and an
entry here. A workload that names a graph file is read by a function that the caller passes in, because builders know
no formats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.builders import decoder, residency_acceptance
from simulator.builders.decoder import Iteration, iteration
from simulator.errors import ConfigError
from simulator.graph import Graph, Job, check_run
from simulator.layout import Weight
from simulator.workload import LlamaModel, Model, Parallel, Workload

__all__ = ["MODELS", "Iteration", "ReadGraph", "build", "build_job", "iteration", "layouts"]

MODELS: dict[str, Callable[[Workload, Any], Job]] = {
    "llama": decoder.build,
    "decoder": decoder.build,
    "residency_acceptance": residency_acceptance.build,
}
"""Model family -> builder."""

ReadGraph = Callable[[Path], Graph]


def build(workload: Workload, base_dir: Path | None = None, read_graph: ReadGraph | None = None) -> Graph:
    """Build the graph of a workload of one rank.

    Parameters
    ----------
    workload, base_dir, read_graph
        As for `build_job`.

    Raises
    ------
    ConfigError
        As `build_job`, or if there are several ranks.
    """
    job = build_job(workload, base_dir, read_graph)
    if job.ranks > 1:
        must, found = "one graph is that of one rank", f"{job.ranks} ranks"
        raise ConfigError(f"workload {workload.name}", must, found, "remove 'ranks: all' or replicas, or build its job")
    return job.graphs[0]


def build_job(workload: Workload, base_dir: Path | None = None, read_graph: ReadGraph | None = None) -> Job:
    """Build what all ranks of a workload run.

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
    Job
        The graphs, and which rank runs which. One from a file is run by all ranks that its groups name, as often as
        the workload says, or else as often as the file says.

    Raises
    ------
    ConfigError
        If the graph file is wrong, or it has inputs that a second step would not find, or there are too many ops, or
        the model cannot be spread over ranks as the workload says.
    """
    job = _build(workload, base_dir, read_graph)
    if workload.replicas > 1:
        job = _replicated(job, workload)
    if workload.outputs == "kept":
        return job
    return replace(job, graphs=tuple(replace(graph, outputs=()) for graph in job.graphs))


def _replicated(job: Job, workload: Workload) -> Job:
    if job.ranks > 1:
        where, must = f"workload {workload.name}, replicas", "a replica is one rank that meets no other"
        raise ConfigError(where, must, f"a graph of {job.ranks} ranks", "remove replicas, or the groups of the graph")
    return Job.of(job.graphs[0], workload.replicas)


def check(workload: Workload) -> None:
    """Refuse a model that cannot run as the workload says, without building it.

    Raises
    ------
    ConfigError
        If there are too many ops or tensors, or the model cannot be spread over ranks as the workload says.
    """
    if workload.model is not None and workload.phase != "requests":
        _check_size(workload, workload.model)
    layouts(workload)


def layouts(workload: Workload) -> dict[str, Weight]:
    """How the weights of a workload's model are spread over ranks, by name; empty where none is cut.

    Raises
    ------
    ConfigError
        If the model cannot be spread over ranks as the workload says.
    """
    if isinstance(workload.model, LlamaModel) and workload.pools is None:
        return decoder.spread_weights(workload, workload.model)
    return {}


def _build(workload: Workload, base_dir: Path | None, read_graph: ReadGraph | None) -> Job:
    where = f"workload {workload.name}"
    if workload.model is not None:
        _check_size(workload, workload.model)
        return MODELS[workload.model.family](workload, workload.model)
    if workload.graph is None or read_graph is None:
        raise ConfigError(where, "a graph comes from a model or a file", "neither", "name one of the two")
    graph = read_graph((base_dir or Path()) / workload.graph)
    if "steps" in workload.model_fields_set:
        graph = graph.repeated(workload.steps, where)
    return Job.of(graph, _ranks(graph))


def _ranks(graph: Graph) -> int:
    """How many ranks the groups of a graph name."""
    return 1 + max((rank for group in graph.groups for ranks in group.members for rank in ranks), default=0)


def _check_size(workload: Workload, model: Model) -> None:
    """Refuse too many ops or tensors, known from models of one and of two layers: every layer has as many."""
    parallel, pools, build_model = workload.parallel, workload.pools, MODELS[model.family]
    fewest = pools and pools.model_copy(update={"new_tokens": 1})
    once = workload.model_copy(
        update={"steps": 1, "parallel": Parallel(), "pools": fewest, "chunk": None, "new_tokens": 1}
    )
    small = (build_model(once, model.with_layers(n)) for n in (1, 2))
    one, two = (
        [max(len(getattr(graph, what)) for graph in job.graphs) for what in ("ops", "tensors")] for job in small
    )
    layers = max(parallel.layers or [-(-model.layers // parallel.pipeline)])
    chunks = -(-workload.sequence // (workload.chunk or workload.sequence))
    times = parallel.micro_batches * (pools.new_tokens if pools else workload.new_tokens) * chunks
    ops, tensors = (first + (layers - 1) * (more - first) for first, more in zip(one, two, strict=True))
    check_run(times * ops, workload.steps, f"workload {workload.name}", tensors)
