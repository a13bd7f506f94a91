"""Edges of a job, one short story each, with exact timelines: 1 byte takes 1 ns from rank to rank."""

from __future__ import annotations

from typing import Any

from rank_stories import cluster, perform, spans, team

from simulator.builders.programs import build_programs
from simulator.graph import Graph, Job
from simulator.workload.job import JobDocument

MAKE = team("x 40", "make: -> x, 10 ns", groups={})
USE = team("y 40 input, z 8", "other: -> z, 5 ns", "use: y z ->, 20 ns", groups={})


def job(programs: dict[str, tuple[Graph, str | int]], edges: list[dict[str, Any]], **more: Any) -> Job:
    """The job of these graphs on their ranks, as a document of its own would make it."""
    about = {name: {"workload": {"graph": name}, "ranks": ranks} for name, (_, ranks) in programs.items()}
    document = JobDocument.model_validate({"name": "j", "programs": about, "edges": edges, "steps": 1, **more})
    return build_programs(document, lambda work: (Job.of(programs[str(work.graph)][0]), {}))


def timeline(job: Job, home: str = "") -> list[str]:
    """What runs when, if each op is issued in program order, and each group of ranks has a stream."""
    programs = []
    for graph in map(job.graph, range(job.ranks)):
        streams = {name: 1 + i for i, name in enumerate(dict.fromkeys(group.name for group in graph.groups))}
        on = [streams[op.collective.group] if op.collective else 0 for op in graph.ops]
        programs.append((graph, "; ".join(f"compute {op.name} {s}" for op, s in zip(graph.ops, on, strict=True))))
    hardware = cluster(max(2, job.ranks), hbm="1000 B")
    return spans(perform(hardware, programs, home), programs, hardware)


def test_a_tensor_is_sent_once_written_and_received_before_it_is_read():
    made = job({"a": (MAKE, 1), "b": (USE, 1)}, [{"from": "a", "to": "b", "tensors": {"x": "y"}}])
    assert [op.name for op in made.graph(1).ops] == ["b.other", "a.to.b/y/recv.0", "b.use"]
    assert timeline(made) == [
        "0: 0-10 a.make", "0: 10-50 a.to.b/y/send.0",
        "1: 0-5 b.other", "1: 10-50 a.to.b/y/recv.0", "1: 50-70 b.use",
    ]  # fmt: skip


def test_on_the_same_rank_it_is_one_tensor():
    made = job({"a": (MAKE, 1), "b": (USE, "a")}, [{"from": "a", "to": "b", "tensors": {"x": "y"}}])
    assert [tensor.name for tensor in made.graphs[0].tensors] == ["a.x", "b.z"]
    assert timeline(made) == ["0: 0-10 a.make", "0: 10-15 b.other", "0: 15-35 b.use"]
