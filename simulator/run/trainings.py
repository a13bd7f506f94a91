"""What a search of layouts is about: decoders that train, alone or as programs of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from simulator.catalog import Loaded
from simulator.errors import ConfigError, insist
from simulator.workload import DecoderModel, Model, Workload
from simulator.workload.job import JobDocument


def trained(loaded: Loaded) -> Workload:
    """Return the workload that trains a decoder.

    Raises
    ------
    ConfigError
        If it does not.
    """
    workload = loaded.workload
    if isinstance(workload, JobDocument) or workload.decoder is None or workload.phase != "train":
        must, do = "layouts are searched for a decoder that trains", "name a workload with a model, and phase: train"
        raise ConfigError(loaded.place("workload"), must, workload.name, do)
    return workload


def decoder_of(loaded: Loaded) -> DecoderModel:
    """Return the parts of the model that is trained.

    Raises
    ------
    ConfigError
        If the workload trains no model, or layers of one kind do not train alike.
    """
    workload, where = trained(loaded), loaded.place("workload")
    must, do = "layers of one kind train alike where layouts are searched", "drop frozen, or checkpoint.layers"
    is_alike = workload.frozen is None and (workload.checkpoint is None or workload.checkpoint.layers is None)
    insist(is_alike, where, must, "some that do not", do)
    return cast(Model, workload.decoder).decoder


def programs_of(loaded: Loaded) -> dict[str, Loaded]:
    """Return the scenario with each program of its job in place of the job, by name; itself if it has no job.

    Raises
    ------
    ConfigError
        If a program is no decoder that trains, or programs share ranks.
    """
    document = loaded.workload
    if not isinstance(document, JobDocument):
        return {"": replace(loaded, workload=trained(loaded))}
    must, do = "layouts are searched where each program has ranks of its own", "place programs apart"
    insist(not document.shares_ranks, loaded.place("workload"), must, "programs that share some", do)
    works = {name: program.on(len(document.placed[name])) for name, program in document.programs.items()}
    must, do = "layouts are searched where programs are models", "leave out delays"
    insist(None not in works.values(), loaded.place("workload"), must, "a delay", do)
    alone = {name: replace(loaded, workload=cast(Workload, work)) for name, work in works.items()}
    return {name: replace(each, workload=trained(each)) for name, each in alone.items()}


def ways(document: Workload | JobDocument) -> list[list[str]]:
    """List the ways of data through programs in a round, from one that gets nothing to one that gives nothing."""
    if not isinstance(document, JobDocument):
        return [[""]]
    edges = [edge for edge in document.edges if not (edge.back or document.lag(edge))]
    after = {name: {edge.to for edge in edges if edge.from_ == name} for name in document.programs}
    ways = [[name] for name in after if not any(edge.to == name for edge in edges)]
    for way in ways:  # it grows meanwhile
        ways += [[*way, name] for name in sorted(after[way[-1]])]
    return [way for way in ways if not after[way[-1]]]
