"""``hosim-graph/1``: round trips, and what is refused."""

from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest
from building import build
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import formats
from simulator.builders import build_job
from simulator.cost import durations_ns
from simulator.document import flaw
from simulator.errors import ConfigError
from simulator.formats import graph_jsonl
from simulator.graph import ALGORITHMS, PHASES, Collective, CollectiveKind, DynamicReads, Graph, OpKind, TensorKind
from simulator.graph_builder import GraphBuilder
from simulator.hardware import Hardware
from simulator.workload import LlamaModel, Parallel, Workload


def example(module: object) -> str:
    """The file in the docstring of a format's module."""
    return dedent(str(module.__doc__).split("::\n\n")[1].split("\n\n")[0]) + "\n"


EXAMPLE = example(graph_jsonl)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_documented_example(tmp_path: Path) -> None:
    path = written(tmp_path / "g.jsonl", EXAMPLE)
    graph = graph_jsonl.read(path)
    assert (graph.name, graph.steps, graph.outputs) == ("mlp", 1, (3,))
    assert [t.kind for t in graph.tensors[:2]] == ["input", "weight"]
    assert graph.ops[0].read_bytes == 4096 + 8192
    assert graph.ops[1].duration_ns == 1500
    graph_jsonl.write(graph, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_text() == EXAMPLE
    assert formats.check(path) == "graph 'mlp': 2 ops, 4 tensors (8,192 B persistent), 1 step"


def test_a_header_may_be_bare(tmp_path: Path) -> None:
    text = '{"schema":"hosim-graph/1"}\n{"tensor":"a","size_bytes":1}\n{"op":"f","writes":["a"]}\n'
    graph = graph_jsonl.read(written(tmp_path / "mine.v2.jsonl", text))
    assert (graph.name, graph.steps, graph.outputs, len(graph.ops)) == ("mine", 1, (), 1)


@pytest.mark.parametrize("name", ["g.jsonl", "g.jsonl.gz"])
def test_a_training_step_survives(tmp_path: Path, name: str) -> None:
    model = LlamaModel(layers=3, hidden=8, heads=4, kv_heads=2, ffn=16, vocabulary=50)
    graph = build(Workload(name="w", model=model, sequence=16, steps=4))
    graph_jsonl.write(graph, tmp_path / name)
    assert graph_jsonl.read(tmp_path / name) == graph


def test_texts_that_ops_share_are_kept_once(tmp_path: Path) -> None:
    ops = [f'{{"op":"{i}","phase":"forward","dtype":"fp32"}}' for i in range(2)]
    first, second = graph_jsonl.read(written(tmp_path / "g.jsonl", lines(*ops))).ops
    assert first.phase is second.phase
    assert first.dtype is second.dtype


def test_ranks_of_a_stage_survive(tmp_path: Path) -> None:
    model = LlamaModel(layers=3, hidden=8, heads=4, kv_heads=2, ffn=16, vocabulary=50)
    layout = Parallel(ranks="all", tensor=2, data=2, pipeline=3, micro_batches=2, zero_stage=3)
    for graph in build_job(Workload(name="w", model=model, sequence=16, parallel=layout)).graphs:
        assert graph.groups
        graph_jsonl.write(graph, tmp_path / "g.jsonl")
        assert graph_jsonl.read(tmp_path / "g.jsonl") == graph


def test_a_file_with_groups_is_run_by_all_their_ranks(tmp_path: Path) -> None:
    written(tmp_path / "g.jsonl", lines(PAIRS, meeting("send", "pairs"), A, '{"op":"f","writes":["alpha"]}'))
    graph = graph_jsonl.read(tmp_path / "g.jsonl")
    assert graph.ops[0].collective == Collective(CollectiveKind.SEND, "pairs", 8)
    assert graph.ops[0].kind == OpKind.COLLECTIVE
    job = build_job(Workload(name="w", graph="g.jsonl"), tmp_path, lambda path, _: graph_jsonl.read(path))
    assert (job.ranks, job.graphs) == (3, (graph,))


def test_late_reads_survive_and_cost_what_is_expected(tmp_path: Path) -> None:
    experts = [f"e{i}" for i in range(8)]
    builder = GraphBuilder("moe")
    for name in ("x", *experts):
        builder.tensor(name, 100, persistent=True)
    builder.op("route", ["x"])
    dynamic = builder.dynamic_reads("experts", "route", experts, samples=2, each=2)
    builder.op("experts", ["x", *experts], dynamic=dynamic)
    graph = builder.build(steps=3)
    op = graph.ops[1]
    assert op.dynamic == DynamicReads(0, tuple(range(1, 9)), samples=2, each=2)
    assert (op.read_bytes, op.repeatable) == (100, False), "the candidates' traffic is not counted"
    graph_jsonl.write(graph, tmp_path / "g.jsonl")
    assert graph_jsonl.read(tmp_path / "g.jsonl") == graph
    tiers = {"hbm": {"capacity": "1 GB", "bandwidth": "1 GB/s"}}
    machine = Hardware.model_validate(
        {"name": "m", "compute_tier": "hbm", "compute": {"peak": {"bf16": "1 TFLOP/s"}}, "tiers": tiers}
    )
    assert durations_ns(graph, machine) == [100, 100 + 4 * 100], "8 - 8 * 0.75^2 = 3.5 experts, rounded up"


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    text, number = st.text(max_size=8).filter(lambda text: not flaw(text)), st.integers(0, 2**58)
    named = text.filter(bool)
    builder = GraphBuilder(draw(text))
    persistent = draw(st.booleans())
    names = draw(st.lists(named, min_size=1, max_size=6, unique=True))
    for name in names:
        shared = draw(st.sampled_from([None, None, "node", "supernode"])) if name != names[0] else None
        kind = draw(st.sampled_from(list(TensorKind))) if persistent else "input"
        builder.tensor(name, draw(number), kind, persistent=persistent, shared=shared)
    shuffled = draw(st.permutations(range(6)))
    builder.group("meet", [shuffled[:2], shuffled[2:]])
    builder.group("pass on", [(0, 1), (1, 2)])
    ops = draw(st.lists(named, min_size=1, max_size=6, unique=True))
    done: list[str] = []
    for name in ops:
        more = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "kind": st.sampled_from([str(k) for k in OpKind]),
                    "read_bytes": number,
                    "write_bytes": number,
                    "flops": number,
                    "workspace_bytes": number,
                    "duration_ns": st.none() | st.integers(0, 2**50),
                    "op_class": text,
                    "dtype": text,
                    "phase": st.sampled_from(PHASES),
                    "barrier": st.booleans(),
                    "stream": st.integers(0, 30),
                },
            )
        )
        if more.get("kind") == "delay":
            takes = more.get("duration_ns") or 0
            more = {key: more[key] for key in ("kind", "phase", "barrier", "stream") if key in more}
            more["duration_ns"] = takes
        if more.get("kind", "compute") == "compute" and more.get("stream", 0) == 0 and draw(st.booleans()):
            more["device"] = "host"
        if more.get("kind") == "collective" and (more.get("duration_ns") is None or draw(st.booleans())):
            does, ranks = draw(st.sampled_from([("all_reduce", "meet"), ("broadcast", "meet"), ("recv", "pass on")]))
            algorithm = draw(st.sampled_from(ALGORITHMS))
            more.pop("duration_ns", None)
            more["collective"] = Collective(CollectiveKind(does), ranks, draw(number), algorithm)
        reads, writes = draw(st.lists(st.sampled_from(names))), draw(st.lists(st.just(names[0])))
        is_plain = more.get("kind", "compute") == "compute" and "device" not in more
        if done and is_plain and set(reads) - set(writes) and draw(st.booleans()):
            candidates = sorted(set(reads) - set(writes))
            each = draw(st.integers(1, len(candidates)))
            by = draw(st.sampled_from(done))
            more["dynamic"] = builder.dynamic_reads(name, by, candidates, samples=draw(st.integers(1, 9)), each=each)
        done += [name] * ("device" not in more)  # what is chosen is revealed on the accelerator
        builder.op(name, reads, writes, **more)
    outputs = names[:1] if persistent and draw(st.booleans()) else []
    return builder.build(outputs, draw(st.integers(1, 3)) if persistent else 1)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_any_graph_survives(tmp_path_factory: pytest.TempPathFactory, graph: Graph) -> None:
    path = tmp_path_factory.mktemp("graphs") / "g.jsonl"
    graph_jsonl.write(graph, path)
    assert graph_jsonl.read(path) == graph


def lines(*changed: str, header: str = '"name":"g"') -> str:
    return "\n".join([f'{{"schema":"hosim-graph/1",{header}}}', *changed]) + "\n"


PAIRS = '{"group":"pairs","ranks":[[0,1],[1,2]]}'


def meeting(does: str, group: str, more: str = '"algorithm":"auto"') -> str:
    return f'{{"op":"m","collective":{{"does":"{does}","group":"{group}","size_bytes":8,{more}}}}}'


def dynamic_reads(choice: str, more: str = '"phase":"decode"') -> str:
    return f'{{"op":"m","reads":["alpha"],{more},"dynamic":{{{choice}}}}}'


A = '{"tensor":"alpha","size_bytes":1}'
B = '{"tensor":"beta","size_bytes":1,"kind":"input"}'
F = '{"op":"f","writes":["alpha"]}'
BAD = {
    "no op": (lines(A), ": a graph has at least one op, found none"),
    "neither tensor nor op": (
        lines('{"name":"x"}'),
        ":2: a line has one of the keys op, tensor, group, found the keys name",
    ),
    "nothing on a line": (lines("{}"), ":2: a line has one of the keys op, tensor, group, found the keys none"),
    "both at once": (lines('{"tensor":"a","op":"f"}'), ":2, tensor: only known keys stand here, found 'tensor'"),
    "an unknown key": (lines(A, '{"op":"f","flop":1}'), ":3, flop: only known keys stand here, found 'flop'"),
    "a misspelt key": (lines(A, '{"op":"f","flop":1}'), ":3, flop: only known keys stand here, found 'flop'"),
    "the key name": (
        lines('{"tensor":"a","size_bytes":1,"name":"b"}'),
        ":2, name: only known keys stand here, found 'name'",
    ),
    "no size": (
        lines('{"tensor":"a","persistent":true}'),
        ":2, size_bytes: the key 'size_bytes' is needed here, found none",
    ),
    "a size with a unit": (
        lines('{"tensor":"a","size_bytes":"1 GB"}'),
        ":2, size_bytes: this is a whole number, found '1 GB'",
    ),
    "a negative size": (lines('{"tensor":"a","size_bytes":-1}'), ":2: tensor 'a': size_bytes is a whole number"),
    "a huge size": (lines('{"tensor":"a","size_bytes":9223372036854775807}'), ":2: tensor 'a': size_bytes is a whole"),
    "a size beyond 64 bits": (
        lines('{"tensor":"a","size_bytes":1e30}'),
        ":2, size_bytes: this is a whole number, found 1e+30",
    ),
    "an empty name": (lines('{"tensor":"","size_bytes":1}'), "each tensor has its own name, found an empty one"),
    "a name that is no text": (
        lines('{"tensor":7,"size_bytes":1}'),
        ":2, tensor: this is a text, found 7",
    ),
    "an unknown kind": (lines('{"tensor":"a","size_bytes":1,"kind":"wheight"}'), "(did you mean 'weight'?)"),
    "an unknown sharing": (lines('{"tensor":"a","size_bytes":1,"shared":"rack"}'), "shared is one of node, supernode"),
    "the same tensor twice": (lines(A, A), ":3: tensor 'alpha': each tensor has its own name, found it twice"),
    "the same op twice": (lines(A, F, F), ":4: op 'f': each op has its own name, found it twice"),
    "an unknown tensor": (lines(A, '{"op":"f","reads":["alpa"]}'), "found 'alpa'; declare the tensor before, or corr"),
    "a close tensor": (lines(A, '{"op":"f","reads":["alpa"]}'), "(did you mean 'alpha'?)"),
    "one name for a list": (
        lines(A, '{"op":"f","reads":"alpha"}'),
        ":3, reads: this is a list, found 'alpha'",
    ),
    "a number for a tensor": (
        lines(A, '{"op":"f","reads":[1]}'),
        ":3, reads.0: this is a text, found 1",
    ),
    "a list for a tensor": (
        lines(A, '{"op":"f","reads":[["alpha"]]}'),
        ":3, reads.0: this is a text, found ['alpha']",
    ),
    "a negative duration": (lines(A, '{"op":"f","duration_ns":-1}'), ":3: op 'f': duration_ns is a whole number"),
    "a barrier in words": (
        lines(A, '{"op":"f","barrier":"yes"}'),
        ":3, barrier: this is true or false, found 'yes'",
    ),
    "a tensor read twice": (
        lines(A, '{"op":"e","writes":["alpha"]}', '{"op":"f","reads":["alpha","alpha"]}'),
        ":4, reads: each name stands here once, found 'alpha' 2 times",
    ),
    "a tensor written twice": (
        lines(A, '{"op":"f","writes":["alpha","alpha"]}'),
        ":3, writes: each name stands here once, found 'alpha' 2 times",
    ),
    "a dangling tensor": (
        lines(A, '{"op":"f","reads":["alpha"]}'),
        ":3: op 'f': a tensor that an op reads is written by an",
    ),
    "a cycle": (
        lines(A, '{"op":"e","reads":["alpha"]}', F),
        "op 'e': a tensor that an op reads is written by an earlier op, persistent, or of kind input, found 'alpha'",
    ),
    "an unknown output": (lines(A, F, header='"outputs":["b"]'), "tensors are named that the graph has, found 'b'"),
    "no step": (lines(A, F, header='"steps":0'), "a graph runs a whole number of steps, at least 1, found 0"),
    "fewer ops than counted": (lines(A, F, header='"ops":2'), ":1: the file has the 2 ops that its header counts, fo"),
    "more tensors than counted": (lines(A, F, header='"tensors":0'), "the 0 tensors that its header counts, found 1"),
    "an unknown group": (
        lines(A, PAIRS, meeting("send", "pear")),
        ":4: op 'm': a collective names a group of the graph, ",
    ),
    "a close group": (
        lines(A, PAIRS, meeting("send", "pear")),
        "found 'pear'; declare the group before, or correct the ",
    ),
    "a group twice": (lines(A, PAIRS, PAIRS), ":4: group 'pairs': each group has its own name, found it twice"),
    "a rank twice": (
        lines(A, '{"group":"g","ranks":[[0,1],[2,2]]}'),
        ":3: group 'g': members are different ranks, whole numbers from 0 to below 1,048,576, found [2, 2]",
    ),
    "nobody": (
        lines(A, '{"group":"g","ranks":[[]]}'),
        "members are different ranks, whole numbers from 0 to below 1,048,576, found []",
    ),
    "a rank in words": (
        lines(A, '{"group":"g","ranks":[["0"]]}'),
        ":3, ranks.0.0: this is a whole number, found '0'",
    ),
    "ranks that are no lists": (
        lines(A, '{"group":"g","ranks":[0,1]}'),
        ":3, ranks.0: this is a list, found 0",
    ),
    "ranks that are no list": (
        lines(A, '{"group":"g","ranks":2}'),
        ":3, ranks: this is a list, found 2",
    ),
    "members that overlap": (
        lines(A, PAIRS, meeting("all_reduce", "pairs")),
        ":4: op 'm': no rank meets twice for all_reduce in group 'pairs', found rank 1 twice",
    ),
    "two messages at once": (
        lines(A, '{"group":"g","ranks":[[0,1],[0,2]]}', meeting("send", "g")),
        ":4: op 'm': no rank meets twice for send in group 'g', found rank 0 twice",
    ),
    "a message to many": (
        lines(A, '{"group":"g","ranks":[[0,1,2]]}', meeting("recv", "g")),
        ":4: op 'm': recv is between pairs (from, to) of group 'g', found [0, 1, 2]; name pairs, or use another group",
    ),
    "an unknown collective": (
        lines(A, PAIRS, meeting("all_gaher", "pairs")),
        ":4: op 'm': its collective is one of all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send",
    ),
    "an unknown algorithm": (
        lines(A, PAIRS, meeting("send", "pairs", '"algorithm":"rings"')),
        ":4: op 'm': its algorithm is one of auto, ring, tree, direct, hierarchical, found 'rings'; choose one",
    ),
    "a collective without a size": (
        lines(A, PAIRS, '{"op":"m","collective":{"does":"send","group":"pairs"}}'),
        ":4, collective.size_bytes: the key 'size_bytes' is needed here, found none",
    ),
    "a collective that computes": (
        lines(A, PAIRS, meeting("send", "pairs").replace("{", '{"kind":"compute",', 1)),
        ":4: op 'm': an op with a collective or a duration of one is of kind collective, found",
    ),
    "a collective of a stated time with members": (
        lines(A, PAIRS, meeting("send", "pairs").replace("{", '{"duration_ns":5,', 1)),
        ":4: op 'm': a collective takes a stated time, or what its members and links take, found both; remove",
    ),
    "a choice that a later op reveals": (
        lines(A, F, dynamic_reads('"revealed_by":"g","candidates":["alpha"]')),
        ":4: op 'm': the op that reveals the choice comes before, found 'g'; put it before, or correct the name",
    ),
    "a choice of nothing": (
        lines(A, F, dynamic_reads('"revealed_by":"f","candidates":[]')),
        ":4: op 'm': each of some samples chooses at least one and at most all candidates, found 1 samples that c",
    ),
    "a candidate that is not read": (
        lines(A, F, B, dynamic_reads('"revealed_by":"f","candidates":["beta"]')),
        ":5: op 'm': a candidate is among the op's reads, and not among its writes, found 'beta', not among its reads",
    ),
    "a candidate that is written": (
        lines(A, F, dynamic_reads('"revealed_by":"f","candidates":["alpha"]', '"writes":["alpha"]')),
        ":4: op 'm': a candidate is among the op's reads, and not among its writes, found 'alpha', written",
    ),
    "more choices than candidates": (
        lines(A, F, dynamic_reads('"revealed_by":"f","candidates":["alpha"],"each":2')),
        ":4: op 'm': each of some samples chooses at least one and at most all candidates, found 1 samples that c",
    ),
    "a choice by nobody": (
        lines(A, F, dynamic_reads('"revealed_by":"f","candidates":["alpha"],"samples":0')),
        ":4: op 'm': each of some samples chooses at least one and at most all candidates, found 0 samples that c",
    ),
    "a candidate twice": (
        lines(A, F, dynamic_reads('"revealed_by":"f","candidates":["alpha","alpha"]')),
        ":4, dynamic.candidates: each name stands here once, found 'alpha' 2 times",
    ),
    "an unknown key of a choice": (
        lines(A, F, dynamic_reads('"revealed_by":"f","candidates":["alpha"],"top_k":2')),
        ":4, dynamic.top_k: only known keys stand here, found 'top_k'",
    ),
    "a choice of many": (
        lines(A, F, dynamic_reads('"revealed_by":"f","candidates":["alpha"]', '"kind":"collective","duration_ns":1')),
        ":4: op 'm': an op with dynamic reads is of kind compute, found kind collective",
    ),
    "an input of two steps": (
        lines('{"tensor":"x","size_bytes":1,"kind":"input"}', '{"op":"f","reads":["x"]}', header='"steps":2'),
        ": a tensor that exists before the first op of a graph of several steps is persistent, found 'x'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_graphs_are_refused_with_file_and_line(tmp_path: Path, name: str) -> None:
    text, message = BAD[name]
    path = written(tmp_path / "f.jsonl", text)
    with pytest.raises(ConfigError) as caught:
        graph_jsonl.read(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused_but_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = bytearray(EXAMPLE.encode())
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 20))
    text[start : start + length] = data.draw(st.binary(max_size=5) | st.sampled_from([b"null", b"[]", b'"', b"1e9"]))
    path = tmp_path_factory.mktemp("damaged") / "g.jsonl"
    path.write_bytes(text)
    with suppress(ConfigError):
        graph_jsonl.read(path)
