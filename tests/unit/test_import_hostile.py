"""Recordings that went wrong: each is read, or refused in one message that can be printed; what is read can be run."""

import json
from random import Random

import pytest
from examples import examples
from mutations import broken, changed, packed
from recorded import (
    ABSENT,
    ADD,
    DATA,
    MM,
    RELU,
    Profile,
    chakra,
    chakra_node,
    message,
    of_1_9,
    piece,
    profiled,
    saved,
    tensor,
    trace,
    training,
)

import simulator as hosim
from simulator.errors import ConfigError
from simulator.formats import graph_jsonl, read_plan
from simulator.importers import refuse_foreign, sniff
from simulator.run.stories import as_recorded, replay_recording

LONGEST_MESSAGE = 2000


def remembered() -> dict:
    profile = profiled()
    for number in range(2):
        profile.mark(number, 30 * number, 30)
    for at, change, address in ((5, 100, 1), (25, 50, 2), (35, -100, 1), (45, -9, 3), (58, 7, 2)):
        profile.memory(at, change, address, 1000)
    return profile.document


def linked(random: Random) -> list[dict]:
    """Nodes of a Chakra trace, as keywords of `chakra_node`, with links and types drawn anew."""
    nodes = []
    for number in range(1, random.randrange(2, 9)):
        after = tuple(random.sample(range(1, 9), random.randrange(3)))
        after = tuple(one for one in after if one < number or random.random() < 0.05)
        tensors = [
            tensor(random.randrange(9), random.randrange(5), random.choice((0, 8, 1 << 40, 1 << 62))) for _ in range(3)
        ]
        more = {
            "rf_id": random.randrange(4),
            "op_schema": random.choice((MM, ADD, RELU, "((", "")),
            "tid": random.randrange(3),
        }
        more |= {"is_cpu_op": random.random() < 0.5} if random.random() < 0.8 else {}
        more |= {"comm_type": random.randrange(12), "comm_size": 64, "num_ops": random.choice((0, 5, 1 << 63))}
        more |= {"reads": tensors[:2], "writes": tensors[2:]}
        more |= {"tensor_size": random.choice((64, 64, 128, 1 << 61))} if random.random() < 0.98 else {}
        took = random.choice((0, 3, 1 << 50, 1 << 63))
        nodes.append({"number": number, "name": "aten::x(0)", "kind": random.choice(KINDS_OF_NODES), "after": after,
                      "took": took, "start": random.choice((0, 0, 7, 1 << 63)), **more})  # fmt: skip
    return nodes


KINDS_OF_NODES = (4, 4, 4, 4, 7, 2, 3, 5, 6, 9)


def chakra_json(random: Random) -> bytes:
    """A trace in one of the JSON forms of Chakra."""
    nodes = [{"id": one["number"], "type": one["kind"], "name": one["name"], "data_deps": one["after"],
              "runtime": one["took"], "is_cpu_op": False, "tensor_size": one.get("tensor_size", 0), "rf_id": "7",
              "inputs": {"values": str(one["reads"])}} for one in linked(random)]  # fmt: skip
    if random.random() < 0.5:
        return json_bytes({"workload_graph": nodes}, random)
    attrs = [{"name": "tensor_size", "uint64Val": "64"}, {"name": "op_schema", "stringVal": RELU}]
    nodes = [changed({**node, "attr": attrs}, random) if random.random() < 0.1 else node for node in nodes]
    found = b"".join(json.dumps(one).encode(errors="replace") for one in ({"version": "0.0.4"}, *nodes))
    return broken(found, random) if random.random() < 0.3 else found


def chakra_bytes(random: Random) -> bytes:
    found = chakra(*(chakra_node(**one) for one in linked(random)))
    return broken(found, random) if random.random() < 0.6 else found


def json_bytes(original, random: Random) -> bytes:
    if random.random() < 0.3:
        return broken(json.dumps(original).encode(), random)
    return json.dumps(changed(original, random), ensure_ascii=False).encode(errors="surrogatepass")


KINDS = {
    "chakra": (chakra_bytes, lambda path: hosim.read_chakra(path, ranks=2)),
    "chakra in JSON": (chakra_json, lambda path: hosim.read_chakra(path, ranks=2)),
    "pytorch": (lambda random: json_bytes(trace(training()), random), hosim.read_pytorch_trace),
    "kineto": (lambda random: json_bytes(remembered(), random), hosim.read_kineto),
    "kineto of 1.9": (lambda random: json_bytes(of_1_9(remembered()), random), hosim.read_kineto),
    "joined": (
        lambda random: json_bytes(profiled().document, random),
        lambda path: hosim.read_pytorch_trace(saved(path.with_name("et.json"), trace(training())), kineto=path),
    ),
}


PUBLISHED = {
    "chakra": ["chakra/feeder_tests_trace.tar.gz"],
    "pytorch": ["pytorch_et/hf_GPT2_et.json.tar.gz", "pytorch_et/linear_et.json.gz"],
    "kineto": [
        "kineto/critical_path_alexnet_benchmark_result_2869224_1695835535_trace.json.gz",
        "kineto/critical_path_cuda_event_sync_multi_stream_event_sync_trace.json.gz",
        "kineto/critical_path_simple_add_benchmark_result_493459_1694039959_trace.json.gz",
    ],
}


def published_bytes(kind: str, random: Random) -> bytes:
    """A piece of a published recording that went wrong."""
    found = piece(random.choice(PUBLISHED[kind]), random)
    return broken(b"".join(found), random) if kind == "chakra" else json_bytes(found, random)


def read(kind: str, number: int, folder, *, is_published: bool = False) -> bool:
    """Whether what went wrong could be read."""
    made, reader = KINDS[kind]
    random = Random(f"{kind} {number}")
    data = published_bytes(kind, random) if is_published else made(random)
    path = folder / "recording.json"
    if random.random() < 0.1:
        path, data = folder / "recording.json.gz", packed(data, random)
    path.write_bytes(data)
    try:
        found = reader(path)
        assert str(found).replace("\n", "").isprintable()
        graph_jsonl.write(found.graph, folder / "graph.jsonl")
        assert graph_jsonl.read(folder / "graph.jsonl") == found.graph
        if plan := found.files.get(".plan.jsonl"):
            (folder / "plan.jsonl").write_bytes(plan)
            read_plan(folder / "plan.jsonl", found.graph, ("compute", "below"))
        if found.recorded_ns and number % 10 == 0 and len(found.graph.ops) < 100:
            as_recorded(found.graph, found.recorded_ns)
    except ConfigError as error:
        message = str(error)
        assert len(message) < LONGEST_MESSAGE, message
        assert message.isprintable(), ascii(message)
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_recording_that_went_wrong_is_read_or_refused(kind, tmp_path):
    found = {read(kind, number, tmp_path) for number in range(20)}
    assert found == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_recordings_that_went_wrong(kind, tmp_path):
    for number in range(20, 60 + examples(10_000)):
        read(kind, number, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason=ABSENT)
@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_published_recording_that_went_wrong_is_read_or_refused(kind, tmp_path):
    assert {read(kind, number, tmp_path, is_published=True) for number in range(12)} == {True, False}


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason=ABSENT)
@pytest.mark.parametrize("kind", PUBLISHED)
def test_many_published_recordings_that_went_wrong(kind, tmp_path):
    numbers = range(12, 40 + examples(10_000))
    assert {read(kind, number, tmp_path, is_published=True) for number in numbers} == {True, False}


def test_recordings_are_known_by_what_is_in_them(tmp_path):
    files = {"pytorch-trace": json.dumps(trace(training())), "kineto": json.dumps(profiled().document)}
    data = {kind: text.encode() for kind, text in files.items()}
    data["chakra"] = chakra(chakra_node(1, "a", took=5, is_cpu_op=False))
    for kind, content in data.items():
        path = tmp_path / "recording"
        path.write_bytes(content)
        assert sniff(path) == kind
        with pytest.raises(ConfigError, match=f"run `hosim import {kind} "):
            refuse_foreign(path)


def test_short_values_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("simulator.importers.recordings.MOST_VALUES", 100)
    path = tmp_path / "recording.json"
    path.write_text("[" + "[]," * 200 + "0]", encoding="utf-8")
    with pytest.raises(ConfigError, match="a recording has at most 100 values, found about 401; record fewer steps"):
        hosim.read_kineto(path)


def test_nodes_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("simulator.importers.chakra_nodes.MOST_NODES", 3)
    path = tmp_path / "recording.et"
    path.write_bytes(chakra(*(chakra_node(number, "a") for number in range(5))))
    with pytest.raises(ConfigError, match="message 4: a Chakra trace has at most 3 nodes"):
        hosim.read_chakra(path)


def test_a_chakra_trace_of_unknown_fields_is_read(tmp_path):
    path = tmp_path / "step.et"
    path.write_bytes(chakra(chakra_node(1, "a", took=5) + message((77, 5), (78, "later"), (10, message((1, "x"))))))
    assert hosim.read_chakra(path).recorded_ns == 5000


def test_a_profile_of_kernels_that_all_overlap_takes_as_long_as_the_longest(tmp_path):
    profile = Profile()
    for number in range(5):
        profile.kernel("k", number, 100 + number, 50 - number, stream=number)
    found = hosim.read_kineto(saved(tmp_path / "profile.json", profile.document))
    assert found.recorded_ns == 50_000
    assert replay_recording(found.graph)[0] == 50_000
    assert sorted(op.stream for op in found.graph.ops if op.name.endswith("/k")) == [0, 1, 2, 3, 4]
