"""Memory nodes of Chakra: the plan that they record keeps their order on any machine, and is written as it was."""

import json
from dataclasses import replace
from random import Random

import chakra_replay
import pytest
from examples import some
from recorded import chakra, chakra_node, message, varint
from stories import graph, machine, steps

import simulator as hosim
from simulator import catalog
from simulator.cost.service import transfer_ns
from simulator.errors import ConfigError
from simulator.exporters import to_chakra
from simulator.formats import read_plan
from simulator.graph import Job
from simulator.plan import NOWHERE, Plan
from simulator.run.case import execute, prepare
from simulator.trace import tuples

LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(2, 8)


def imported(tmp_path, *nodes, **options):
    path = tmp_path / "step.et"
    path.write_bytes(chakra(*nodes))
    hosim.read_chakra(path, **options).write(tmp_path / "step.yaml", force=True)
    return tmp_path / "step.yaml"


def case_of(workload, hardware="h100_sxm", **changes):
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return prepare(catalog.resolve(catalog.scenario_of(hardware, workload), changes), with_bounds=False)


def replayed(case, row="recorded"):
    """The trace of a row of one rank, and its plan."""
    plan = case.rows()[row](case.problem)
    trace = execute(case, [plan])
    assert trace.status == "ok", trace.blocked
    return trace, plan


def end_ns(trace):
    return int(trace.spans.whole()["end_ns"].max())


def spans(case, trace):
    """Start and end of each compute by its name, and of each copy by direction and size."""
    found = {}
    for kind, item, track, start, end in tuples(trace.spans.whole(), "kind", "item", "track", "start_ns", "end_ns"):
        op = case.graph.ops[item].name.partition("/")[2] if not kind else None
        size = case.graph.tensors[item].size_bytes if kind else 0
        key = op or (LOAD if case.hardware.hops[track][1] == case.hardware.compute_tier_id else STORE, size)
        assert key not in found
        found[key] = start, end
    return found


def moving(number, kind, after=(), size=1_000_000_000, **more):
    return chakra_node(number, f"m{number}", kind, after, tensor_size=size, **more)


def chain():
    """A load, a forward, a store, a load and a backward, each behind the one before it."""
    return [
        moving(1, LOAD),
        chakra_node(2, "fwd", COMPUTE, (1,), num_ops=10**12, tensor_size=10**6),
        moving(3, STORE, (2,)),
        moving(4, LOAD, (3,)),
        chakra_node(5, "bwd", COMPUTE, (4,), num_ops=2 * 10**12, tensor_size=10**6),
    ]


def test_a_chain_takes_the_sum_of_its_parts_as_recorded_and_less_under_a_plan(tmp_path):
    case = case_of(imported(tmp_path, *chain()))
    trace, _ = replayed(case)
    links, times = case.hardware.links, case.tasks[0].times_ns
    copies = [transfer_ns(10**9, links[name]) for name in ("h2d", "d2h", "h2d")]
    assert end_ns(trace) == case.hardware.host.fixed.launch_ns + sum(copies) + sum(times)
    assert 57.9e6 < end_ns(trace) < 58.2e6
    static, _ = replayed(case, "static")  # what it was stored for fits: one load remains
    assert end_ns(static) == end_ns(trace) - sum(copies[1:])


def test_the_command_runs_the_recorded_plan_beside_policies(tmp_path, monkeypatch):
    results = hosim.run(catalog.scenario_of("h100_sxm", imported(tmp_path, *chain())))
    assert list(results) == ["recorded", "resident", "reactive", "static"]
    case = case_of(imported(tmp_path, *chain()))
    for name in ("recorded", "static"):
        trace, _ = replayed(case, *([name] if name == "static" else []))
        assert results[name].summary["makespan_ns"] == end_ns(trace)
    named = hosim.run(catalog.scenario_of("ascend_910c_cache", tmp_path / "step.yaml", ["recorded"]))
    assert list(named) == ["recorded"]  # whatever the tiers are called


def test_a_load_brings_back_the_newest_store_of_its_size_that_it_follows(tmp_path):
    nodes = [
        chakra_node(1, "a", COMPUTE, took=1),
        moving(2, STORE, (1,), 100),
        chakra_node(3, "b", COMPUTE, (1,), took=1),
        moving(4, STORE, (3,), 100),
        chakra_node(5, "c", COMPUTE, (2, 4), took=1),
        moving(6, LOAD, (5,), 100),  # that of 4, which 5 waited for
        moving(7, LOAD, (), 200),  # of no store
        chakra_node(8, "d", COMPUTE, (6, 7), took=1),
        moving(9, LOAD, (8,), 100),  # that of 2
        moving(10, LOAD, (8,), 100),  # of none: nothing is left
        chakra_node(11, "e", COMPUTE, (9, 10), took=1),
    ]
    found = hosim.read_chakra(imported(tmp_path, *nodes).with_name("step.et"))
    sizes = [t.size_bytes for t in found.graph.tensors]
    uses = {
        op.name.partition("/")[2]: [[t for t in used if sizes[t]] for used in (op.reads, op.writes)]
        for op in found.graph.ops
    }
    assert {*uses["a"][1]} < {*uses["e"][0]}
    assert {*uses["b"][1]} < {*uses["d"][0]}
    remote = [t.name for t in found.graph.tensors if t.persistent]
    assert len(remote) == 2
    assert all(name.startswith("remote") for name in remote)
    assert (found.workload.remote, found.workload.steps) == (("remote*",), 1)
    assert found.kept["memory loads"] == "4 of 500 B"
    assert not any("memory" in name for name in found.dropped)


def drawn(random, count):
    """Nodes of all kinds, each with its own size or name, that depend on any before it; and their dependencies."""
    nodes, links, sizes = [], {}, {STORE: [], LOAD: []}
    for number in range(1, count + 1):
        kind = random.choice((LOAD, STORE, COMPUTE, COMPUTE, COLLECTIVE, 1))
        after = tuple(sorted(random.sample(range(1, number), min(number - 1, random.randrange(4)))))
        size = 1_000_000 * number
        if kind == LOAD and sizes[STORE] and random.random() < 0.6:
            size = sizes[STORE].pop(random.randrange(len(sizes[STORE])))
        elif kind == STORE:
            sizes[STORE].append(size)
        links[number] = kind, size, after
        more = {"took": random.randrange(1, 50)} if kind in (COMPUTE, COLLECTIVE) else {}
        nodes.append(chakra_node(number, f"n{number}", kind, after, tensor_size=size, **more))
    return nodes, links


@pytest.mark.parametrize("seed", some(range(40), 3))
def test_every_node_is_there_once_and_starts_behind_what_it_depends_on(tmp_path, seed):
    nodes, links = drawn(Random(seed), 25)
    case = case_of(imported(tmp_path, *nodes), tiers__hbm__capacity="inf")
    trace, _ = replayed(case)
    found = spans(case, trace)

    def key(number):
        kind, size, _ = links[number]
        return f"n{number}" if kind in (COMPUTE, COLLECTIVE) else (kind, size)

    real = {number for number, (kind, *_) in links.items() if kind != 1}
    assert {key(number) for number in real} == found.keys() - {"begin", "end"}

    def before(number):
        return {real_one for other in links[number][2] for real_one in ({other} if other in real else before(other))}

    for number in real:
        for other in before(number):
            assert found[key(number)][0] >= found[key(other)][1], (number, other)


@pytest.mark.parametrize("seed", range(10))
def test_what_was_read_is_written_again_and_read_as_the_same(tmp_path, seed):
    """The exporter says what a chain of nodes said: another simulator ends at the same nanosecond."""
    random, nodes = Random(seed), []
    for number in range(1, 15):
        kind, after = random.choice((LOAD, STORE, COMPUTE)), (number - 1,) if number > 1 else ()
        more = {"took": random.randrange(1, 50)} if kind == COMPUTE else {"tensor_size": 1000 * random.randrange(1, 9)}
        nodes.append(chakra_node(number, f"n{number}", kind, after, **more))
    case = case_of(imported(tmp_path, *nodes), "ascend_910c_die")
    trace, plan = replayed(case)
    sentences = to_chakra.write(case, case.tasks[0], plan, tmp_path / "again.et")
    again = hosim.read_chakra(tmp_path / "again.et")
    assert again.graph == case.graph
    (tmp_path / "again.plan.jsonl").write_bytes(again.files[".plan.jsonl"])
    read = read_plan(tmp_path / "again.plan.jsonl", case.graph, plan.tiers)
    assert (read.home, read.actions, read.repeats) == (plan.home, plan.actions, plan.repeats)
    memory = json.loads(sentences[1].removeprefix("Its memory: "))
    latency, rate = memory["remote-mem-latency"] // 1000, memory["remote-mem-bw"]
    assert chakra_replay.replay_ns(tmp_path / "again.et", rate, latency) == end_ns(trace)


def bare(path):
    """The same trace without the lines of hosim."""
    parts = [message((1, "0.0.4"))]
    for fields in chakra_replay.messages(path)[1:]:
        kept = [(key, value) for key, value in fields if not (key == 10 and b"hosim_" in value)]
        parts.append(message(*kept))
    return b"".join(varint(len(part)) + part for part in parts)


def test_a_trace_of_a_plan_reads_as_the_same_moves_without_the_lines_of_hosim(tmp_path):
    """1 ns is 1 us there, and the link has 1 GB/s."""
    hardware = machine("100 B")
    g = graph("w 40 persistent, a 40, b 40, c 10", "f: w -> a, 100 ns", "g: a -> b, 100 ns", "h: b w -> c, 10 ns")
    text = (
        "copy w ddr hbm; compute f; detach w hbm; compute g; copy a hbm ddr; detach a hbm; copy w ddr hbm; compute h;"
        "detach w hbm; detach b hbm; detach c hbm; detach a ddr"
    )
    plan = Plan("hand", hardware.tier_names, (1, NOWHERE, NOWHERE, NOWHERE), steps(g, hardware, text))
    case = prepare(catalog.resolve("tiny_train_910c"), with_bounds=False)
    story = case.loaded.scenario.model_copy(update={"homes": {}, "budget_bytes": None, "expect": ()})
    own = prepare(
        replace(case.loaded, hardware=hardware, is_job_given=True, scenario=story), Job.of(g), with_bounds=False
    )
    to_chakra.write(own, own.tasks[0], plan, tmp_path / "plan.et")
    (tmp_path / "bare.et").write_bytes(bare(tmp_path / "plan.et"))
    found = hosim.read_chakra(tmp_path / "bare.et")
    assert (found.kept["memory loads"], found.kept["memory stores"]) == ("2 of 80.0 kB", "1 of 40.0 kB")
    found.write(tmp_path / "bare.yaml")
    again = prepare(replace(case_of(tmp_path / "bare.yaml").loaded, hardware=machine("1000 kB")), with_bounds=False)
    assert end_ns(replayed(again)[0]) == 1000 * end_ns(execute(own, [plan]))


def test_a_store_stands_between_a_compute_and_an_all_reduce(tmp_path):
    """They are of several streams, and would else run at once."""
    nodes = [
        chakra_node(1, "up", COMPUTE, took=100),
        moving(2, STORE, (1,), 10**7),
        chakra_node(3, "sum", COLLECTIVE, (2,), comm_type=0, comm_size=10**6),
        chakra_node(4, "next", COMPUTE, (1,), took=30),
    ]
    case = case_of(imported(tmp_path, *nodes, ranks=2), "dgx_h100")
    trace, _ = replayed(case)
    rows = tuples(trace.spans.whole(), "rank", "kind", "item", "start_ns", "end_ns")
    times = {(case.graph.ops[i].name[2:] if not kind else "copy"): (s, e) for rank, kind, i, s, e in rows if rank == 0}
    assert times["sum"][0] == times["copy"][1] > times["copy"][0] == times["up"][1] == times["next"][0]
    assert any(op.name.endswith("sum") and op.reads for op in case.graph.ops), "under other policies, too"


def test_sends_and_receives_are_messages_between_pairs_of_ranks(tmp_path):
    nodes = [
        chakra_node(1, "up", COMPUTE, took=9),
        chakra_node(2, "out", SEND, (1,), comm_size=64),
        chakra_node(3, "in", RECEIVE, (2,), comm_size=32),
        chakra_node(4, "down", COMPUTE, (3,), took=9),
    ]
    path = imported(tmp_path, *nodes, ranks=5).with_name("step.et")
    found = hosim.read_chakra(path, ranks=5).graph
    assert [(str(op.collective.kind), op.collective.size_bytes) for op in found.ops if op.collective] == [
        ("broadcast", 64), ("broadcast", 32),
    ]  # fmt: skip
    assert found.groups[0].members == ((0, 1), (2, 3, 4))
    alone = hosim.read_chakra(path)
    assert alone.dropped == {"collectives of one rank (--ranks)": 2}
    assert alone.recorded_ns == 18_000


def test_what_no_op_stands_for_keeps_the_order_of_those_around_it(tmp_path):
    nodes = [
        chakra_node(1, "up", num_ops=5),
        chakra_node(2, "about", 1, (1,)),
        chakra_node(3, "alone", COLLECTIVE, (2,), comm_type=0),
        chakra_node(4, "down", COMPUTE, (3,), num_ops=5),
    ]
    graph_read = hosim.read_chakra(imported(tmp_path, *nodes).with_name("step.et")).graph
    assert [(op.reads, op.writes) for op in graph_read.ops] == [((), (0,)), ((0,), (1,))]


@pytest.mark.parametrize("nodes", [[moving(1, LOAD)], [moving(1, STORE)], [moving(1, STORE), moving(2, LOAD, (1,))]])
def test_moves_alone_are_a_step(tmp_path, nodes):
    case = case_of(imported(tmp_path, *nodes))
    trace, _ = replayed(case)
    took = sum(transfer_ns(10**9, case.hardware.links["h2d" if b"\x18\x02" in node else "d2h"]) for node in nodes)
    assert end_ns(trace) == took + case.hardware.host.fixed.launch_ns


def test_a_move_without_a_size_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"step\.et: node 7: a load or store states its tensor_size, found none"):
        imported(tmp_path, chakra_node(7, "m", LOAD))


def test_what_loads_bring_back_is_looked_for_so_far(tmp_path, monkeypatch):
    monkeypatch.setattr("simulator.importers.chakra_moves._MOST_FOLLOWED", 30)
    nodes = [moving(1, STORE, size=5), *(chakra_node(n, "c", COMPUTE, (n - 1,), took=1) for n in range(2, 20))]
    imported(tmp_path, *nodes, moving(20, LOAD, (3,), 5))
    with pytest.raises(ConfigError, match="is found within 30 dependencies, found more; record fewer steps"):
        imported(tmp_path, *nodes, moving(20, LOAD, (19,), 5))


def as_feeder(nodes):
    """The form of Chakra's feeder."""
    keys = {"id": "Id", "name": "Name", "type": "NodeType", "deps": "data_deps", "us": "runtime"}
    return {
        "workload_graph": [
            {keys.get(k, k): v.decode() if isinstance(v, bytes) else v for k, v in n.items()} for n in nodes
        ]
    }


def as_messages(nodes):
    """What protocol buffers write of messages, one after another."""
    types = {2: "MEM_LOAD_NODE", 3: "MEM_STORE_NODE", 4: "COMP_NODE", 7: "COMM_COLL_NODE"}
    texts = [json.dumps({"version": "0.0.4"})]
    for node in nodes:
        attr = [{"name": key, "int64Val": str(node[key])} for key in ("num_ops", "tensor_size") if key in node]
        named = {"id": str(node["id"]), "name": node["name"].decode(), "type": types[node["type"]], "attr": attr}
        more = {"dataDeps": [str(other) for other in node["deps"]], "durationMicros": str(node["us"])}
        texts.append(json.dumps(named | more, indent=2))
    return "".join(texts)


def plain(nodes):
    """Nodes as dictionaries, of the fields that both forms have."""
    found = []
    for node in nodes:
        fields = chakra_replay.fields(node)
        one, attrs = dict(fields), {}
        for value in (value for key, value in fields if key == 10):
            (_, name), (_, content) = chakra_replay.fields(value)
            attrs[name.decode()] = content
        deps, offset = [], 0
        while offset < len(one[5]):
            dep, offset = chakra_replay.varint(one[5], offset)
            deps.append(dep)
        found.append({"id": one[1], "name": one[2], "type": one[3], "deps": deps, "us": one.get(7, 0), **attrs})
    return found


@pytest.mark.parametrize("form", [lambda nodes: json.dumps(as_feeder(nodes)), as_messages])
def test_json_is_read_as_the_messages_are(tmp_path, form):
    wire = hosim.read_chakra(imported(tmp_path, *chain()).with_name("step.et"))
    (tmp_path / "step.json").write_text(form(plain(chain())))
    found = hosim.read_chakra(tmp_path / "step.json")
    assert (found.graph, found.files[".plan.jsonl"]) == (wire.graph, wire.files[".plan.jsonl"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"workload_graph": 5}', "found none; record with"),
        ('{"workload_graph": [5]}', r"workload_graph\[0\]: a node is an object, found 5"),
        ('{"version": "0.0.4"} {"id": "1"', "message 1: .* found Expecting"),
        ('{"version": "3.0.0"}', "hosim reads schemas 0.0.4 to 1.x of Chakra, found '3.0.0'"),
        ('{"version": "0.0.4"} 5', "message 1: .* found a value that is no object"),
        ('{"schema": "1", "nodes": []}', "message 0: .* found JSON that is none of Chakra's forms"),
        ('{"version": "0.0.4"} {"id": "1", "type": "COMP_NODE"} {"id": 1}', "message 2: .* found one more"),
        ('{"version": "0.0.4"} ' + '{"a":' * 100_000, "message 1: .* found one that breaks off"),
    ],
)
def test_json_that_is_broken_is_told(tmp_path, text, message):
    (tmp_path / "step.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        hosim.read_chakra(tmp_path / "step.json")
