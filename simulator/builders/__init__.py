"""Builders: a workload becomes a job, which is one graph for all ranks, or several.

Models of all families but recommenders are built from a decoder's parts (`DecoderModel.decoder`). A workload that names
a graph file is read by a function that the caller passes in, because builders know no formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from simulator.builders import inference, recommender, replicas, stage
from simulator.builders.cache import CachedLayers, cached_layers, limited_reaches
from simulator.builders.inference import Iteration, Iterations, decoder_of, iteration, least_iteration
from simulator.builders.joined import build_programs
from simulator.builders.turns import stage_layers
from simulator.builders.weights import Laid, lay
from simulator.errors import ConfigError, insist
from simulator.graph import LARGEST_RUN, Graph, Job, check_run
from simulator.interrupts import no_garbage_search
from simulator.layout import Weight
from simulator.workload import DlrmModel, Experts, Layer, Model, Parallel, Workload
from simulator.workload.job import JobDocument

__all__ = [
    "CachedLayers", "Iteration", "Iterations", "build_job", "cached_layers", "check", "decoder_of", "iteration",
    "largest_size", "layouts", "least_iteration", "limited_reaches", "of_kinds", "stage_layers",
]  # fmt: skip

ReadGraph = Callable[[Path, Literal["reads", "writes"]], Graph]
_MOST = 1000
"""More ops or tensors than a layer has in a micro-batch, a chunk or a token, unless experts or blocks of the cache are
tensors of their own: training sparse attention with experts and all options takes about 240."""


@no_garbage_search()
def build_job(
    workload: Workload | JobDocument, base_dir: Path | None = None, read_graph: ReadGraph | None = None
) -> Job:
    """Build the graphs that the ranks of a workload run.

    Parameters
    ----------
    workload
        The workload, or a job of several; what it leaves to a policy runs on the accelerator.
    base_dir
        Folder of its document, which a graph file is relative to; default: the working directory.
    read_graph
        Function that reads a graph file, whose ops that make a view read it or write it.

    Returns
    -------
    Job
        The graphs, and which rank runs which. A graph from a file is run by all ranks that its groups name, or by the
        replicas that the workload states, for as many steps as the workload says, or else the file.

    Raises
    ------
    ConfigError
        If the graph file is wrong, or it has inputs that a second step would not find, or there are too many ops, or
        the model or the graph cannot be spread over ranks as the workload says.
    """
    if isinstance(workload, JobDocument):
        return build_programs(workload, lambda work: (build_job(work, base_dir, read_graph), layouts(work)))
    where, workload = f"workload {workload.name}", workload.settled[0]
    if isinstance(workload.model, DlrmModel):
        job = recommender.build(workload, workload.model)
    elif workload.decoder is not None:
        _check_size(workload, workload.decoder, is_built=True)
        job = _builder(workload, workload.decoder)(lay(workload, workload.decoder))
    elif workload.graph is not None and read_graph is not None:
        graph = read_graph((base_dir or Path()) / workload.graph, workload.views)
        if "steps" in workload.model_fields_set:
            graph = graph.repeated(workload.steps, where)
        named = (rank for group in graph.groups for ranks in group.members for rank in ranks)
        job = Job.of(graph, 1 + max(named, default=0))
        if workload.parallel.ranks == "all":
            job = replicas.spread(graph, workload.parallel, where)
    else:
        raise ConfigError(where, "a graph comes from a model or a file", "neither", "name one of the two")
    must, found = "a replica is one rank that meets no other", f"a graph of {job.ranks} ranks"
    do = "remove replicas, or the groups of the graph"
    insist(workload.replicas == 1 or job.ranks == 1, f"{where}, replicas", must, found, do)
    if workload.replicas > 1:
        job = Job.of(job.graphs[0], workload.replicas)
    if workload.in_place:
        job = _with_in_place(job, workload.in_place, f"{where}, in_place")
    if workload.outputs == "kept":
        return job
    return replace(job, graphs=tuple(replace(graph, outputs=()) for graph in job.graphs))


def _with_in_place(job: Job, patterns: Sequence[str], where: str) -> Job:
    """Mark what kernels may read in place; refuse patterns of nothing that may, and graphs that do not know how."""
    is_plain = not any(graph.dynamic_reads or graph.on_host for graph in job.graphs)
    must, do = "kernels read in place where nothing is read dynamically and the host computes nothing", "remove one"
    insist(is_plain, where, must, "dynamic reads, or ops of the host", do)
    for pattern in patterns:
        found = [tensor for graph in job.graphs for tensor in graph.matching(pattern)]
        must, do = "it names kinds of tensors, or patterns of names, in the graph", "correct it"
        insist(found, where, must, repr(pattern), do)
        fits = any(not graph.may_stay_away.isdisjoint(graph.matching(pattern)) for graph in job.graphs)
        must = "kernels read in place only persistent tensors that no op writes and no collective reads"
        insist(fits, where, must, f"none such of {pattern!r}", "remove it")
    named = [frozenset().union(*map(graph.matching, patterns)) for graph in job.graphs]
    marked = (replace(g, in_place=of & g.may_stay_away) for g, of in zip(job.graphs, named, strict=True))
    return replace(job, graphs=tuple(marked))


def check(workload: Workload | JobDocument) -> None:
    """Refuse a model that cannot run as the workload says, without building it.

    Raises
    ------
    ConfigError
        If there are too many ops or tensors, or the model cannot be spread over ranks as the workload says.
    """
    if isinstance(workload, JobDocument):
        for name, program in workload.programs.items():
            if (work := program.on(len(workload.placed[name]))) is not None:
                check(work)
        return
    if isinstance(workload.model, DlrmModel):
        recommender.check(workload, workload.model)
    elif workload.decoder is not None and workload.phase != "requests":
        _check_size(workload, workload.decoder)
    layouts(workload)


def layouts(workload: Workload | JobDocument) -> dict[str, Weight]:
    """Return the weights of a workload's model and how they are spread over ranks, by name; empty for pools and jobs.

    Raises
    ------
    ConfigError
        If the model cannot be spread over ranks as the workload says.
    """
    if isinstance(workload, JobDocument) or workload.decoder is None or workload.phase == "serve":
        return {}
    return lay(workload, workload.decoder).by_name


def _check_size(workload: Workload, model: Model, *, is_built: bool = False) -> None:
    """Refuse too many ops or tensors, counting every layer as the largest kind.

    Models of one and of two layers of each kind tell how many a layer adds. Where the whole is plainly small, one layer
    of each kind is built to find other errors; nothing if the whole `is_built` next.
    """
    layers, times = _layers_and_times(workload, model)
    is_small = _MOST * layers * times * workload.steps <= LARGEST_RUN
    is_small &= workload.kv is None and workload.experts != "each"
    if is_built and is_small:
        return
    for ops, tensors in _sizes(workload, model, (1,) if is_small else (1, 2)):
        check_run(ops, workload.steps, f"workload {workload.name}", tensors)


def largest_size(workload: Workload, model: Model) -> tuple[int, int]:
    """Return how many ops a rank runs in a step, and about how many tensors it has, at most, without building all."""
    ops, tensors = zip(*_sizes(workload, model, (1, 2)), strict=True)
    return max(ops), max(tensors)


def _layers_and_times(workload: Workload, model: Model) -> tuple[int, int]:
    """Return the most layers of a rank, and how many times a step runs each."""
    parallel, pools = workload.parallel, workload.pools
    chunks = -(-workload.sequence // (workload.chunk or workload.sequence))
    times = parallel.micro_batches * (pools.new_tokens if pools else workload.new_tokens) * chunks
    return parallel.chunks * max(parallel.layers or [0]) or -(-model.layers // parallel.pipeline), times


def _sizes(workload: Workload, model: Model, fews: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield, for each kind of layer, the ops and tensors if all layers were of it, from models of a few layers."""
    (layers, times), pools = _layers_and_times(workload, model), workload.pools
    fewest = {"steps": 1, "parallel": Parallel(), "chunk": None, "new_tokens": 1}
    if checkpoint := workload.checkpoint:
        fewest["checkpoint"] = checkpoint.model_copy(update={"layers": None})
    once = workload.model_copy(update=fewest | {"pools": pools and pools.model_copy(update={"new_tokens": 1})})
    for jobs in zip(*(of_kinds(once, model, few).values() for few in fews), strict=True):
        by_job = (job.graphs for job in jobs)
        sizes = [(max(len(g.ops) for g in graphs), max(len(g.tensors) for g in graphs)) for graphs in by_job]
        ends = zip(sizes[0], sizes[-1], strict=True)
        ops, tensors = (first + (layers - 1) * (last - first) for first, last in ends)
        yield times * ops, tensors


def of_kinds(workload: Workload, model: Model, layers: int) -> dict[Layer, Job]:
    """Build, for each kind of layer, what ranks run of the model with a few layers, all of this kind.

    Parameters
    ----------
    workload, model
        How it runs, and the model.
    layers
        How many layers.

    Raises
    ------
    ConfigError
        If the model cannot be spread over ranks as the workload says.
    """
    build, jobs = _builder(workload, model), dict[Layer, Job]()
    alone = workload.model_copy(update={"parallel": workload.parallel.model_copy(update={"expert": 1})})
    for kind in model.decoder.kinds:
        apart = workload if isinstance(kind.feed_forward, Experts) else alone  # expert ranks are replicas elsewhere
        jobs[kind] = build(lay(apart, model.decoder.of_kind(kind, layers)))
    return jobs


def _builder(workload: Workload, model: Model) -> Callable[[Laid], Job]:
    """Return the function that builds a graph for each pipeline stage, for each pool, or for inference."""
    must, do = "a run repeats one step", "choose another phase, or run hosim serve on a scenario with it"
    found = f"phase {workload.phase} of the family {model.family}"
    insist(workload.phase != "requests", f"workload {workload.name}", must, found, do)
    if workload.pools is not None:
        return partial(inference.build_pools, pools=workload.pools)
    return stage.build if workload.phase == "train" else inference.build
