"""Laws of orders: the same ops, the same values, no more room than there is, and no step below the bound."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_stories import job_of
from rank_strategies import jobs, meeting
from strategies import graphs

from simulator import ordering
from simulator.bounds import streams_of
from simulator.cost import durations_ns
from simulator.graph import Graph, Job
from simulator.lifetime import live_bytes
from simulator.referee import check_job


def values(graph: Graph) -> dict[str, object]:
    """What each op reads, by its name, and what is there at the end: for each tensor who wrote it, and how often."""
    version: dict[int, tuple[object, ...]] = {}
    seen: dict[str, object] = {}
    for op in graph.ops:
        seen[op.name] = tuple(version.get(t, ()) for t in (*op.reads, *op.writes))
        for t in op.writes:
            version[t] = (*version.get(t, ()), op.name)
    return seen | {graph.tensors[t].name: made for t, made in version.items()}


def sides(graph: Graph) -> list[tuple[str, frozenset[str]]]:
    """What is before each barrier."""
    names = [op.name for op in graph.ops]
    return [(op.name, frozenset(names[:index])) for index, op in enumerate(graph.ops) if op.barrier]


@dataclass(frozen=True)
class Given:
    graph: Graph
    times: list[int]
    budget: int

    def __repr__(self) -> str:
        ops = [(op.name, op.reads, op.writes, op.workspace_bytes, op.stream, op.collective) for op in self.graph.ops]
        sizes = [(t.size_bytes, t.persistent) for t in self.graph.tensors]
        return f"{ops=} {sizes=} times={self.times} budget={self.budget} outputs={self.graph.outputs}"


@st.composite
def cases(draw) -> Given:
    graph = draw(meeting(draw(graphs(max_ops=12))))
    if draw(st.booleans()):
        ops = list(graph.ops)
        wall = draw(st.integers(0, len(ops) - 1))
        ops[wall] = replace(ops[wall], barrier=True)
        graph = replace(graph, ops=tuple(ops))
    times = [draw(st.integers(0, 30)) for _ in graph.ops]
    return Given(graph, times, draw(st.integers(0, 400)))


@settings(max_examples=examples(400), deadline=None)
@given(cases())
def test_an_order_keeps_values_room_and_the_bound(case: Given) -> None:
    graph, streams = case.graph, streams_of(case.graph)
    job, bound_ns = ordering.mpmd(Job.of(graph, 2), [case.times], [streams], [case.budget])
    (found,) = job.graphs
    assert Counter(op.name for op in found.ops) == Counter(op.name for op in graph.ops)
    assert values(found) == values(graph)
    assert live_bytes(found).max() <= max(case.budget, live_bytes(graph).max())
    assert sides(found) == sides(graph)
    taken = {op.name: ns for op, ns in zip(graph.ops, case.times, strict=True)}
    plain, ordered = (ends_ns(g, [taken[op.name] for op in g.ops]) for g in (graph, found))
    assert ordered <= plain, "list scheduling takes the program where that is shorter"
    if graph.steps == 1:
        assert bound_ns <= ordered


def ends_ns(graph: Graph, times: list[int]) -> int:
    """When the last op ends, if each starts once its stream is free and what it waits for has ended."""
    free: dict[int, int] = {}
    done: list[int] = []
    for op, stream in enumerate(streams_of(graph)):
        before = [i for i in range(op) if is_bound(graph, i, op)]
        start = max([free.get(stream, 0), *(done[i] for i in before)])
        free[stream] = start + times[op]
        done.append(start + times[op])
    return max(done)


def is_bound(graph: Graph, earlier: int, later: int) -> bool:
    one, two = graph.ops[earlier], graph.ops[later]
    touches = {*one.writes} & {*two.reads, *two.writes} or {*one.reads} & {*two.writes}
    return bool(touches) or one.barrier or two.barrier


@settings(max_examples=examples(200), deadline=None)
@given(cases(), st.lists(st.integers(0, 12), min_size=2, max_size=6))
def test_weaving_keeps_values_and_parts(case: Given, ends: list[int]) -> None:
    marks = sorted({min(end, len(case.graph.ops)) for end in ends})
    parts = list(zip(marks[::2], marks[1::2], strict=False)) or [(0, len(case.graph.ops))]
    found = ordering.woven(case.graph, parts)
    assert values(found) == values(case.graph)
    assert sides(found) == sides(case.graph)
    inside = {op for start, stop in parts for op in range(start, stop)}
    for op, (old, new) in enumerate(zip(case.graph.ops, found.ops, strict=True)):
        assert op in inside or old is new
    for start, stop in parts:
        assert {op.name for op in found.ops[start:stop]} == {op.name for op in case.graph.ops[start:stop]}


@settings(max_examples=examples(150), deadline=None)
@given(jobs())
def test_ranks_of_different_graphs_meet_as_they_did(case) -> None:
    programs, hardware = case
    job = job_of([program.graph for program in programs])
    first = [job.graph_of.index(i) for i in range(len(job.graphs))]
    times = [durations_ns(graph, hardware, rank) for graph, rank in zip(job.graphs, first, strict=True)]
    found, _ = ordering.mpmd(job, times, [*map(streams_of, job.graphs)], [0] * len(job.graphs))
    for old, new in zip(job.graphs, found.graphs, strict=True):
        assert values(new) == values(old)
        assert sorted(op.name for op in new.ops) == sorted(op.name for op in old.ops)
    check_job(found, hardware)
