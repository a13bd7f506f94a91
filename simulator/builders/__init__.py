"""Builders: a workload becomes a job, which is one graph for all ranks, or several.

`MODELS` names the families; a new one is a function from a workload and its model to a job, and an entry there. A
workload that names a graph file is read by a function that the caller passes in, because builders know no formats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from math import gcd
from pathlib import Path
from typing import Any

from simulator.builders import inference
from simulator.builders.inference import Iteration as Iteration
from simulator.builders.stage import Stage
from simulator.builders.tape import blocks
from simulator.builders.weights import weights
from simulator.errors import ConfigError
from simulator.graph import Graph, Job, check_run
from simulator.layout import Mesh, Weight
from simulator.units import would_divide
from simulator.workload import DecoderModel, LlamaModel, Model, Parallel, Workload

ReadGraph = Callable[[Path], Graph]


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
    where = f"workload {workload.name}"
    if workload.model is not None:
        _check_size(workload, workload.model)
        job = MODELS[workload.model.family](workload, workload.model)
    elif workload.graph is not None and read_graph is not None:
        graph = read_graph((base_dir or Path()) / workload.graph)
        if "steps" in workload.model_fields_set:
            graph = graph.repeated(workload.steps, where)
        named = (rank for group in graph.groups for ranks in group.members for rank in ranks)
        job = Job.of(graph, 1 + max(named, default=0))
    else:
        raise ConfigError(where, "a graph comes from a model or a file", "neither", "name one of the two")
    if workload.replicas > 1 and job.ranks > 1:
        must, found = "a replica is one rank that meets no other", f"a graph of {job.ranks} ranks"
        raise ConfigError(f"{where}, replicas", must, found, "remove replicas, or the groups of the graph")
    if workload.replicas > 1:
        job = Job.of(job.graphs[0], workload.replicas)
    if workload.outputs == "kept":
        return job
    return replace(job, graphs=tuple(replace(graph, outputs=()) for graph in job.graphs))


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
        return _spread(workload, workload.model)
    return {}


def iteration(workload: Workload, work: Iteration, room: int) -> Graph:
    """Build one iteration of serving the requests of a workload.

    Parameters
    ----------
    workload
        With a model of the family decoder, and requests.
    work
        What runs together.
    room
        How many tokens the KV cache has room for in the compute tier, less those that leave it [tokens].
    """
    if not isinstance(workload.model, DecoderModel):
        where = f"workload {workload.name}"
        raise ConfigError(where, "requests are served by a decoder", "another model", "choose a decoder")
    return inference.build_iteration(workload, _spread(workload, workload.model), _mesh(workload), work, room)


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


def _decoder(workload: Workload, model: LlamaModel | DecoderModel) -> Job:
    """Build a graph for each pipeline stage, for each pool, or for the one rank of inference."""
    where, mesh, spread = f"workload {workload.name}", _mesh(workload), _spread(workload, model)
    if workload.phase in ("prefill", "decode"):
        return inference.build(workload, model.decoder, mesh, spread)
    if isinstance(model, DecoderModel) or workload.phase == "requests":
        must, do = "a run is of steps that are alike", "choose another phase, or run hosim serve on a scenario with it"
        raise ConfigError(where, must, f"phase {workload.phase} of the family {model.family}", do)
    if workload.pools is not None:
        return inference.build_pools(workload, model.decoder, workload.pools, mesh, spread)
    names, ends = blocks(model.layers), accumulate(_stage_layers(workload.parallel, model, where), initial=0)
    parts = [names[start:end] for start, end in pairwise(ends)]
    graphs = tuple(Stage(workload, model, mesh, spread, place).graph() for place in enumerate(parts))
    labels = tuple(f"stage {i}" for i in range(len(graphs))) if len(graphs) > 1 else (workload.name,)
    return Job(workload.name, graphs, tuple(mesh.position(rank, ("pipeline",)) for rank in range(mesh.ranks)), labels)


MODELS: dict[str, Callable[[Workload, Any], Job]] = {"llama": _decoder, "decoder": _decoder}
"""Model family -> builder."""


def _mesh(workload: Workload) -> Mesh:
    matrix = workload.parallel.device_matrix
    return Mesh((1,) * len(matrix) if workload.parallel.ranks == "one" else tuple(matrix.values()), tuple(matrix))


def _spread(workload: Workload, model: LlamaModel | DecoderModel) -> dict[str, Weight]:
    """Lay the weights of a model over ranks as a workload says; refuse what does not divide, with what would."""
    where, parallel = f"workload {workload.name}", workload.parallel
    if isinstance(model, LlamaModel):
        whole = () if parallel.layouts else ("heads", "kv_heads", "ffn", "vocabulary")
        divided = {"tensor": {name: getattr(model, name) for name in whole}, "expert": {"experts": model.experts or 1}}
        if parallel.sequence:
            divided["tensor"]["tokens of a micro-batch"] = workload.batch * workload.sequence
        for axis, lengths in divided.items():
            parts = getattr(parallel, axis)
            for name, length in lengths.items():
                if length % parts:
                    do = would_divide(f"parallel.{axis}", gcd(*lengths.values()), parts)
                    must = f"{axis} divides {', '.join(lengths)}"
                    raise ConfigError(f"{where}, parallel.{axis}", must, f"{parts}, and {length} {name}", do)
        if model.tied_embeddings and parallel.pipeline > 1:
            must, found = "a model with tied embeddings has one stage", f"{parallel.pipeline} stages"
            do = "set pipeline to 1, or tied_embeddings to false"
            raise ConfigError(f"{where}, parallel.pipeline", must, found, do)
        _stage_layers(parallel, model, where)
    return weights(model.decoder, blocks(model.layers), _mesh(workload), parallel, where)


def _stage_layers(parallel: Parallel, model: LlamaModel, where: str) -> tuple[int, ...]:
    """Layers of each stage."""
    few, more = divmod(model.layers, parallel.pipeline)
    found = parallel.layers or tuple(few + (stage < more) for stage in range(parallel.pipeline))
    if sum(found) != model.layers or 0 in found:
        must = f"the stages have the {model.layers} layers of the model, and one at least"
        do = f"set pipeline to at most {model.layers}, or correct layers"
        raise ConfigError(f"{where}, parallel.pipeline", must, ", ".join(map(str, found)), do)
    return found
