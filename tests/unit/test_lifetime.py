"""Lifetimes, against a small story and against an oracle that counts op by op."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.lifetime import NEVER, IdleInterval, Lifetimes, idle_intervals, live_bytes, working_set_bytes

W, X, A, B, OUT, SPARE = range(6)


def story(steps: int = 1) -> Graph:
    builder = GraphBuilder("story")
    builder.tensor("w", 100, "weight", persistent=True)
    builder.tensor("x", 10, "input", persistent=steps > 1)
    builder.tensor("a", 20)
    builder.tensor("b", 30)
    builder.tensor("out", 5)
    builder.tensor("spare", 1000)
    builder.op("0", [], [], workspace_bytes=1)
    builder.op("1", ["x", "w"], ["a"])
    builder.op("2", ["a"], ["b"], workspace_bytes=50)
    builder.op("3", ["b"], ["b"])
    builder.op("4", ["a"], ["out"])
    builder.op("5", ["w"], ["w"])
    return builder.build(outputs=["out"], steps=steps)


def test_lifetimes_of_a_story() -> None:
    found = Lifetimes(story())
    assert found.uses == ((1, 5), (1,), (1, 2, 4), (2, 3), (4,), ())
    assert found.writes == ((5,), (), (1,), (2, 3), (4,), ())
    assert found.first_use == (1, 1, 1, 2, 4, NEVER)
    assert found.last_use == (5, 1, 4, 3, 4, NEVER)
    assert [ops[:1] for ops in found.writes] == [(5,), (), (1,), (2,), (4,), ()]
    assert found.born == (0, 0, 1, 2, 4, NEVER)
    assert found.dies == (5, 1, 4, 3, 5, NEVER)
    assert found.dead_after == ((), (X,), (), (B,), (A,), ())


def test_live_bytes_count_after_the_allocation_and_before_the_free() -> None:
    assert live_bytes(story()).tolist() == [111, 130, 200, 150, 125, 105]


def test_working_set_counts_each_tensor_once() -> None:
    assert working_set_bytes(story()).tolist() == [1, 130, 100, 30, 25, 100]


def test_intervals_of_one_step_lie_between_two_uses() -> None:
    assert list(idle_intervals(story())) == [IdleInterval(W, 1, 5), IdleInterval(A, 2, 4)]


def test_persistent_tensors_wrap_over_the_step_boundary() -> None:
    intervals = list(idle_intervals(story(steps=2)))
    assert intervals == [
        IdleInterval(W, 1, 5),
        IdleInterval(W, 5, 1, wraps=True),
        IdleInterval(X, 1, 1, wraps=True),
        IdleInterval(A, 2, 4),
    ]


def test_no_interval_wraps_if_no_op_lies_in_it() -> None:
    builder = GraphBuilder("g")
    builder.tensor("w", 1, persistent=True)
    builder.op("0", ["w"])
    builder.op("1", ["w"])
    assert list(idle_intervals(builder.build(steps=3))) == []


def test_persistent_tensors_that_nobody_uses_are_live_all_step() -> None:
    builder = GraphBuilder("g")
    builder.tensor("w", 7, persistent=True)
    builder.op("0")
    builder.op("1")
    assert live_bytes(builder.build()).tolist() == [7, 7]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    builder = GraphBuilder("random")
    steps = draw(st.integers(1, 2))
    ready = []
    for i in range(draw(st.integers(1, 4))):
        persistent = steps > 1 or draw(st.booleans())
        builder.tensor(f"in{i}", draw(st.integers(0, 9)), "input", persistent=persistent)
        ready.append(f"in{i}")
    made = []
    for i in range(draw(st.integers(1, 8))):
        reads = draw(st.lists(st.sampled_from(ready), max_size=3))
        writes = draw(st.lists(st.sampled_from(ready), max_size=2))
        if draw(st.booleans()):
            builder.tensor(f"t{i}", draw(st.integers(0, 9)))
            writes.append(f"t{i}")
            made.append(f"t{i}")
            ready.append(f"t{i}")
        builder.op(f"op{i}", reads, writes, workspace_bytes=draw(st.integers(0, 5)))
    outputs = draw(st.lists(st.sampled_from(made), unique=True)) if made else []
    return builder.build(outputs, steps)


def slow_live_bytes(graph: Graph) -> list[int]:
    """Walk the ops, keep a set of what is there, and look ahead for whether anybody needs it again."""
    there = set(graph.inputs)
    live = []
    for i, op in enumerate(graph.ops):
        there.update(op.reads, op.writes)
        live.append(sum(graph.tensors[t].size_bytes for t in there) + op.workspace_bytes)
        later = {t for o in graph.ops[i + 1 :] for t in (*o.reads, *o.writes)}
        there = {t for t in there if t in later or graph.tensors[t].persistent or t in graph.outputs}
    return live


@given(graphs())
def test_live_bytes_equal_those_of_the_oracle(graph: Graph) -> None:
    assert live_bytes(graph).tolist() == slow_live_bytes(graph)


@given(graphs())
def test_what_was_not_there_from_the_start_and_is_no_output_dies_once(graph: Graph) -> None:
    found = Lifetimes(graph)
    dead = [t for ts in found.dead_after for t in ts]
    expected = [
        t
        for t, tensor in enumerate(graph.tensors)
        if found.uses[t] and not tensor.persistent and t not in graph.outputs
    ]
    assert sorted(dead) == expected
    assert (live_bytes(graph) >= working_set_bytes(graph)).all()


@given(graphs())
def test_intervals_and_uses_share_out_all_ops(graph: Graph) -> None:
    """Over a step that wraps, each op either uses a persistent tensor or lies in exactly one of its intervals."""
    found, n = Lifetimes(graph), len(graph.ops)
    for t, tensor in enumerate(graph.tensors):
        if not (tensor.persistent and graph.steps > 1 and found.uses[t]):
            continue
        seen = np.zeros(n, int)
        seen[list(found.uses[t])] += 1
        for idle in idle_intervals(graph):
            if idle.tensor == t:
                inside = [i % n for i in range(idle.after + 1, idle.before + (n if idle.wraps else 0))]
                seen[inside] += 1
        assert (seen == 1).all()


@pytest.mark.parametrize("size", [2**40, 2**61])
def test_large_sizes_are_counted_exactly(size: int) -> None:
    builder = GraphBuilder("g")
    builder.tensor("w", size, persistent=True)
    builder.tensor("a", size - 1)
    builder.op("0", ["w"], ["a"], workspace_bytes=1)
    assert live_bytes(builder.build()).tolist() == [2 * size]
