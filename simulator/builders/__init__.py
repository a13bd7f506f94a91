"""Builders: a workload becomes a job, which is one graph for all ranks, or several.

Models of all families are built from a decoder's parts (`DecoderModel.decoder`). A workload that names a graph file is
read by a function that the caller passes in, because builders know no formats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from simulator.builders import inference, stage
from simulator.builders.inference import CachedLayers as CachedLayers
from simulator.builders.inference import Iteration as Iteration
from simulator.builders.inference import further as further
from simulator.builders.inference import kept as kept
from simulator.builders.weights import lay, size_bytes
from simulator.errors import ConfigError, insist
from simulator.graph import LARGEST_RUN, Graph, Job, check_run
from simulator.layout import Weight
from simulator.workload import DecoderModel, Model, Parallel, Workload

ReadGraph = Callable[[Path], Graph]
_FAR = 10
"""A layer adds less than so many times what a model of one layer has: the first one may have no backward pass."""


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
        job = _build(workload, workload.model)
    elif workload.graph is not None and read_graph is not None:
        graph = read_graph((base_dir or Path()) / workload.graph)
        if "steps" in workload.model_fields_set:
            graph = graph.repeated(workload.steps, where)
        named = (rank for group in graph.groups for ranks in group.members for rank in ranks)
        job = Job.of(graph, 1 + max(named, default=0))
    else:
        raise ConfigError(where, "a graph comes from a model or a file", "neither", "name one of the two")
    must, found = "a replica is one rank that meets no other", f"a graph of {job.ranks} ranks"
    do = "remove replicas, or the groups of the graph"
    insist(workload.replicas == 1 or job.ranks == 1, f"{where}, replicas", must, found, do)
    if workload.replicas > 1:
        job = Job.of(job.graphs[0], workload.replicas)
    without_outputs = (replace(graph, outputs=()) for graph in job.graphs)
    return job if workload.outputs == "kept" else replace(job, graphs=tuple(without_outputs))


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
    if workload.model is None or workload.phase in ("serve", "requests"):
        return {}
    return lay(workload, workload.model).by_name


def weight_bytes(workload: Workload) -> int:
    """What a rank holds of all weights of a workload's model [B].

    Raises
    ------
    ConfigError
        If the model cannot be spread over ranks as the workload says.
    """
    return sum(size_bytes(weight, workload.dtypes) for weight in layouts(workload).values())


def iteration(workload: Workload, work: Iteration, room_bytes: int) -> Graph:
    """Build one iteration of serving the requests of a workload.

    Parameters
    ----------
    workload
        With a model, and requests.
    work
        What runs together.
    room_bytes
        What the KV cache of all layers has room for in the compute tier, less what leaves it [B].
    """
    model = decoder_of(workload)
    return inference.build_iteration(lay(workload, model), work, room_bytes)


def lone(workload: Workload) -> Iteration:
    """The least iteration of a workload with requests: one sequence adds a token to one."""
    return Iteration(decoding=1, context=1, answers=1, near=((1, 1, 1),) * len(further(decoder_of(workload))))


def decoder_of(workload: Workload) -> DecoderModel:
    """The model of a workload, as a decoder's parts.

    Raises
    ------
    ConfigError
        If it has none.
    """
    if workload.model is None:
        where = f"workload {workload.name}"
        raise ConfigError(where, "requests are served by a model", "a graph", "choose a workload with a model")
    return workload.model.decoder


def _check_size(workload: Workload, model: Model) -> None:
    """Refuse too many ops or tensors, as if every layer had as many as those that have most.

    How many a layer adds is known from models of one and of two layers of each kind. Where even many times those of one
    layer are few enough, as in most workloads, the second model is not built.
    """
    parallel, pools = workload.parallel, workload.pools
    fewest = {"steps": 1, "parallel": Parallel(), "chunk": None, "new_tokens": 1}
    if about := workload.checkpoint:
        fewest["checkpoint"] = about.model_copy(update={"layers": None})
    once = workload.model_copy(update=fewest | {"pools": pools and pools.model_copy(update={"new_tokens": 1})})
    ones, layers = _sizes(once, model, 1), max(parallel.layers or [-(-model.layers // parallel.pipeline)])
    chunks = -(-workload.sequence // (workload.chunk or workload.sequence))
    times = parallel.micro_batches * (pools.new_tokens if pools else workload.new_tokens) * chunks
    if _FAR * max(map(max, ones)) * layers * times * workload.steps <= LARGEST_RUN:
        return
    found = list(zip(ones, _sizes(once, model, 2), strict=True))
    ops, tensors = (max(one[i] + (layers - 1) * (two[i] - one[i]) for one, two in found) for i in (0, 1))
    check_run(times * ops, workload.steps, f"workload {workload.name}", tensors)


def _sizes(workload: Workload, model: Model, layers: int) -> list[tuple[int, int]]:
    """Most ops of a graph, and most tensors, of models with so many layers, for each kind of layer."""
    jobs = (_build(workload, model.decoder.of_kind(kind, layers)) for kind in model.decoder.kinds)
    return [(max(len(one.ops) for one in job.graphs), max(len(one.tensors) for one in job.graphs)) for job in jobs]


def _build(workload: Workload, model: Model) -> Job:
    """Build a graph for each pipeline stage, for each pool, or for the one rank of inference."""
    must, do = "a run is of steps that are alike", "choose another phase, or run hosim serve on a scenario with it"
    found = f"phase {workload.phase} of the family {model.family}"
    insist(workload.phase != "requests", f"workload {workload.name}", must, found, do)
    laid = lay(workload, model)
    if workload.pools is not None:
        return inference.build_pools(laid, workload.pools)
    return stage.build(laid) if workload.phase == "train" else inference.build(laid)
