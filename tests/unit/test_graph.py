"""The rules of a graph, and the messages of its builder."""

import pickle
from dataclasses import replace

import pytest

from simulator.errors import ConfigError
from simulator.graph import LARGEST_RUN, Graph, GraphColumns, Job, OpKind, TensorKind
from simulator.graph_builder import GraphBuilder


def small() -> GraphBuilder:
    builder = GraphBuilder("small")
    builder.tensor("w", 100, "weight", persistent=True)
    builder.tensor("x", 10, "input")
    builder.tensor("y", 20)
    return builder


def test_ids_are_positions_and_names_become_ids() -> None:
    builder = small()
    assert builder.op("f", ["x", "w"], ["y"], flops=7) == 0
    graph = builder.build(outputs=["y"])
    assert [t.name for t in graph.tensors] == ["w", "x", "y"]
    assert graph.tensors[0].kind is TensorKind.WEIGHT
    assert graph.ops[0].reads == (1, 0)
    assert graph.ops[0].writes == (2,)
    assert graph.outputs == (2,)


def test_traffic_is_the_size_of_the_tensors_unless_given() -> None:
    builder = small()
    builder.op("f", ["x", "w"], ["y"])
    builder.op("g", ["x", "w"], ["y"], read_bytes=1, write_bytes=0)
    f, g = builder.build().ops
    assert (f.read_bytes, f.write_bytes) == (110, 20)
    assert (g.read_bytes, g.write_bytes) == (1, 0)


def test_a_tensor_named_twice_by_an_op_is_read_once() -> None:
    builder = small()
    builder.op("f", ["x", "x"], ["y"])
    op = builder.build().ops[0]
    assert op.reads == (1,)
    assert op.read_bytes == 10


def test_inputs_are_what_exists_before_the_first_op() -> None:
    builder = small()
    builder.op("f", ["x"], ["y"])
    builder.op("g", ["y"], ["x"])
    assert builder.build().inputs == (0, 1)


def test_an_input_may_be_updated_in_place() -> None:
    builder = small()
    builder.op("f", ["x"], ["x", "y"])
    assert builder.build().inputs == (0, 1)


def test_repeated_changes_the_steps_only() -> None:
    builder = GraphBuilder("g")
    builder.tensor("w", 1, persistent=True)
    builder.op("f", ["w"], kind="collective", duration_ns=1)
    graph = builder.build()
    again = graph.repeated(5)
    assert again.steps == 5
    assert again.repeated(1) == graph
    assert graph.ops[0].kind is OpKind.COLLECTIVE


def test_columns_say_what_ops_and_tensors_say() -> None:
    builder = small()
    builder.op("f", ["x", "w"], ["y"], workspace_bytes=7)
    builder.op("g", kind="collective", duration_ns=1)
    builder.op("h", ["y"], ["x", "y"], stream=3)
    columns = builder.build(outputs=["y"]).columns
    found = {name: getattr(columns, name).tolist() for name in GraphColumns.__slots__}
    assert found == {
        "reads_at": [0, 2, 2, 3],
        "reads": [1, 0, 2],
        "writes_at": [0, 1, 1, 3],
        "writes": [2, 1, 2],
        "workspace_bytes": [7, 0, 0],
        "streams": [0, 0, 3],
        "is_collective": [0, 1, 0],
        "size_bytes": [100, 10, 20],
        "is_persistent": [1, 0, 0],
        "is_output": [0, 0, 1],
        "is_written": [0, 1, 1],
    }


def test_columns_follow_the_graph_and_change_nothing_of_it() -> None:
    builder = small()
    builder.op("f", ["w"], ["y"], workspace_bytes=7)
    graph = builder.build()
    columns = graph.columns
    assert graph.repeated(2).columns is columns
    assert graph.repeated(2).inputs == graph.inputs
    longer = replace(graph, ops=graph.ops * 2, outputs=(2,))
    assert longer.columns.workspace_bytes.tolist() == [7, 7]
    assert longer.columns.is_output.tolist() == [0, 0, 1]
    bare = Graph(graph.name, graph.tensors, graph.ops)
    assert graph == bare
    assert hash(graph) == hash(bare)
    loaded = pickle.loads(pickle.dumps(graph))
    assert loaded == graph
    assert loaded.columns.size_bytes.tolist() == columns.size_bytes.tolist()


def write_shared(b: GraphBuilder) -> None:
    b.tensor("s", 1, shared="node")
    b.op("f", [], ["s"])


BROKEN = {
    "the same tensor twice": (lambda b: b.tensor("w", 1), "small: tensor 'w': each tensor has its own name"),
    "the same op twice": (lambda b: (b.op("f"), b.op("f")), "small: op 'f': each op has its own name"),
    "a tensor without a name": (lambda b: b.tensor("", 1), "each tensor has its own name, found an empty one"),
    "an op without a name": (lambda b: b.op(""), "each op has its own name, found an empty one"),
    "a negative size": (lambda b: b.tensor("z", -1), "size_bytes is a whole number from 0 to 2**62, found -1"),
    "a size that is no integer": (lambda b: b.tensor("z", 1.5), "size_bytes is a whole number"),
    "a truth value for a size": (lambda b: b.tensor("z", True), "found True"),
    "a huge size": (lambda b: b.tensor("z", 2**62 + 1), "from 0 to 2**62"),
    "an unknown tensor kind": (lambda b: b.tensor("z", 1, "wieght"), "(did you mean 'weight'?)"),
    "an unknown sharing": (lambda b: b.tensor("z", 1, shared="rack"), "shared is one of node, supernode"),
    "an unknown op kind": (lambda b: b.op("f", kind="gpu"), "kind is one of compute, collective, delay, found 'gpu'"),
    "an op on the host": (
        lambda b: b.op("f", kind="host"),
        "op 'f': kind is one of compute, collective, delay, found 'host'",
    ),
    "an unknown device": (lambda b: b.op("f", device="cpu"), "device is one of accelerator, host, found 'cpu'"),
    "a collective on the host": (
        lambda b: b.op("f", kind="collective", duration_ns=1, device="host"),
        "an op of the host is of kind compute, and has no dynamic reads, found collective",
    ),
    "a reveal by the host": (
        lambda b: (b.op("f", device="host"), b.tensor("e", 1), b.dynamic_reads("g", "f", ["e"])),
        "the op that reveals the choice runs on the accelerator, found 'f', of the host; run it there",
    ),
    "a stream of both": (
        lambda b: (b.op("f", stream=1), b.op("g", device="host", stream=1), b.build()),
        "op 'g': ops of one stream are of one device, found stream 1, of the accelerator, too",
    ),
    "a group of endless ranks": (lambda b: b.group("g", [[0, 2**62]]), "whole numbers from 0 to below 1,048,576"),
    "a name on two lines": (lambda b: b.op("f\ng"), "'f\\ng'"),
    "a name that rings": (lambda b: b.tensor("f\x07", 1), "another unprintable character"),
    "a name that is a formula": (lambda b: b.tensor("=HYPERLINK(1)", 1), "take for a formula"),
    "a name without an end": (lambda b: b.op("f" * 10**6), "found one of 1,000,000 characters"),
    "a class that colours": (lambda b: b.op("f", op_class="\x1b[31m"), "its op_class is a name, found one with"),
    "a graph that colours": (lambda b: GraphBuilder("\x1b[31m").build(), "a graph has a name, found one with"),
    "negative work": (lambda b: b.op("f", flops=-1), "flops is a whole number"),
    "no traffic at all": (lambda b: b.op("f", read_bytes=None), "read_bytes is a whole number"),
    "a negative duration": (lambda b: b.op("f", duration_ns=-1), "duration_ns is a whole number"),
    "too high a stream": (lambda b: b.op("f", stream=32), "its stream is from 0 to 31, found 32"),
    "an unknown tensor": (lambda b: b.op("f", ["ww"]), "op 'f': tensors are named that the graph has, found 'ww'"),
    "a write to a shared tensor": (write_shared, "no op writes a shared tensor, found one among its writes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_a_rule_is_refused_at_once(name: str) -> None:
    breaks, message = BROKEN[name]
    with pytest.raises(ConfigError) as caught:
        breaks(small())
    assert message in str(caught.value)


def build_nothing(b: GraphBuilder) -> Graph:
    return b.build()


def build_cycle(b: GraphBuilder) -> Graph:
    b.op("f", ["y"], [])
    b.op("g", [], ["y"])
    return b.build()


def build_cycle_in_one_op(b: GraphBuilder) -> Graph:
    b.op("f", ["y"], ["y"])
    return b.build()


def build_dangling(b: GraphBuilder) -> Graph:
    b.op("f", ["y"], [])
    return b.build()


def build_unwritten_output(b: GraphBuilder) -> Graph:
    b.op("f", ["x"], [])
    return b.build(outputs=["y"])


def build_unknown_output(b: GraphBuilder) -> Graph:
    b.op("f", ["x"], [])
    return b.build(outputs=["yy"])


def build_input_in_two_steps(b: GraphBuilder) -> Graph:
    b.op("f", ["x"], [])
    return b.build(steps=2)


def build_too_many_steps(b: GraphBuilder) -> Graph:
    b.op("a", duration_ns=0)
    b.op("b", duration_ns=0)
    return b.build(steps=LARGEST_RUN // 2 + 1)


def build_no_step(b: GraphBuilder) -> Graph:
    b.op("f", ["x"], [])
    return b.build(steps=0)


def build_too_large(b: GraphBuilder) -> Graph:
    b.tensor("z", 2**62 - 1)
    b.op("f", ["x"], [])
    return b.build()


def build_too_long(b: GraphBuilder) -> Graph:
    b.op("f", [], [], duration_ns=2**61)
    return b.build(steps=3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (build_nothing, "small: a graph has at least one op, found none; add an op"),
        (
            build_cycle,
            "op 'f': a tensor that an op reads is written by an earlier op, persistent, or of kind input, found 'y'",
        ),
        (build_cycle_in_one_op, "found 'y'; put the ops in program order"),
        (build_dangling, "found 'y'; put the ops in program order, add the op that writes it"),
        (build_unwritten_output, "small: outputs: an output exists: some op writes it, found 'y'"),
        (build_unknown_output, "tensors are named that the graph has, found 'yy'"),
        (build_input_in_two_steps, "of a graph of several steps is persistent, found 'x'"),
        (
            build_too_many_steps,
            "at most 4,000,000 ops, all steps together, found 2 ops in each of 2,000,001 steps; lower",
        ),
        (build_no_step, "a whole number of steps, at least 1, found 0"),
        (build_too_large, "the sizes add up to at most 2**62"),
        (build_too_long, "the durations of all steps add up to at most 2**62"),
    ],
)
def test_what_is_wrong_as_a_whole_is_refused_by_build(build, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as caught:
        build(small())
    assert message in str(caught.value)


def test_messages_name_the_line_of_the_file() -> None:
    builder = GraphBuilder("g", "g.jsonl")
    builder.line = 2
    builder.tensor("y", 1)
    builder.line = 7
    builder.op("f", ["y"])
    with pytest.raises(ConfigError, match=r"^g\.jsonl:7: op 'f': "):
        builder.build()
    builder.line = 9
    with pytest.raises(ConfigError, match=r"^g\.jsonl:9: tensor 'y': "):
        builder.tensor("y", 1)


def test_a_phase_is_one_that_policies_know():
    with pytest.raises(ConfigError, match=r"phase is one of forward, backward, .* found 'fwd'"):
        GraphBuilder("g").op("f", phase="fwd")


def sized(*sizes, **numbers):
    builder = GraphBuilder("g")
    for name, size in zip("xyz", sizes, strict=True):
        builder.tensor(name, size, "input" if name == "x" else "activation")
    builder.op("f", ["x"], ["y"], **numbers)
    builder.op("g", ["y"], ["z"], workspace_bytes=1)
    return builder.build(["z"])


def test_a_graph_takes_the_numbers_of_another_and_keeps_its_shape():
    graph, other = sized(1, 2, 3), sized(9, 8, 7, flops=6, workspace_bytes=5, duration_ns=4)
    _ = graph.inputs, graph.columns
    made = graph.with_numbers(other, [0, 1, 2], [0, 1])
    assert made == other
    assert made.shape == graph.shape
    assert made.inputs is graph.inputs
    assert made.columns.size_bytes.tolist() == [9, 8, 7]
    assert made.columns.workspace_bytes.tolist() == [5, 1]
    assert graph.with_numbers(other, [2, 2, 0], [1, 0]).ops[1].flops == 6
    assert sized(1, 2, 3, barrier=True).shape != graph.shape


ONE, TWO = Graph("one", (), ()), Graph("two", (), ())


@pytest.mark.parametrize(
    ("graphs", "graph_of", "labels", "message"),
    [
        (
            (ONE,),
            (0, 1),
            ("a",),
            "graph_of: ranks run the 1 graph of a job, numbered from 0, and each",
        ),
        ((ONE, TWO), (0, -1), ("a", "b"), "graph_of: ranks run the 2 graphs of a job, numbered from 0, and each"),
        ((), (0,), (), "graph_of: ranks run the 0 graphs of a job, numbered from 0, and each"),
        ((ONE,), (), ("a",), "graph_of: ranks run the 1 graph of a job, numbered from 0, and each"),
        ((ONE, TWO), (0, 0), ("a", "b"), "graph_of: ranks run the 2 graphs of a job, numbered from 0, and each"),
        ((ONE, TWO), (0, 1), ("a",), "labels: each graph has a label, found 1 label for 2 graphs; give its ranks"),
        ((ONE,), (0,), ("a", "b"), "labels: each graph has a label, found 2 labels for 1 graph; give its ranks"),
        ((ONE,), (0,), "a", "labels: a list of entries of type str is needed, found one str; correct it"),
        (ONE, (0,), ("a",), "graphs: a list of entries of type Graph is needed, found one Graph; correct it"),
        ((ONE,), (0.0,), ("a",), "graph_of: a list of entries of type int is needed, found one float; correct it"),
        ((ONE,), (0, True), ("a",), "graph_of: a list of entries of type int is needed, found one bool; correct it"),
        (("one",), (0,), ("a",), "graphs: a list of entries of type Graph is needed, found one str; correct it"),
    ],
)
def test_a_malformed_job_is_one_message(graphs, graph_of, labels, message) -> None:
    with pytest.raises(ConfigError) as error:
        Job("mine", graphs, graph_of, labels)
    assert str(error.value).startswith(f"job 'mine', {message}")
