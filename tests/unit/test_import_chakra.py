"""Chakra traces: the wire format, the order of nodes, kernels of operators, collectives, and what is broken."""

import gzip

import pytest
from recorded import ABSENT, ADD, DATA, RELU, chakra, chakra_node, message, tensor, varint

import simulator as hosim
from simulator.errors import ConfigError
from simulator.run.stories import as_recorded, replay_recording


def read(tmp_path, *nodes, version="0.0.4", **options):
    path = tmp_path / "step.et"
    path.write_bytes(chakra(*nodes, version=version))
    return hosim.read_chakra(path, **options)


A, B, C = tensor(1, 1, 8), tensor(2, 2, 8), tensor(3, 3, 8)


def launched():
    """A relu of two kernels and an addition in place; the host takes 3 us for each part of an operator."""
    return [
        chakra_node(10, "aten::relu(0)", took=3, is_cpu_op=True, rf_id=1, op_schema=RELU, reads=[A], writes=[B]),
        chakra_node(11, "kernel_a", after=(10,), took=5, is_cpu_op=False, tid=7, reads=[A], writes=[B]),
        chakra_node(
            12, "aten::relu(1)", after=(10,), took=3, is_cpu_op=True, rf_id=1, op_schema=RELU, reads=[A], writes=[B]
        ),
        chakra_node(13, "kernel_b", after=(12,), took=4, is_cpu_op=False, tid=7, reads=[A], writes=[B]),
        chakra_node(
            14, "aten::add_(0)", after=(12,), took=30, is_cpu_op=True, rf_id=2, op_schema=ADD, reads=[B, C], writes=[B]
        ),
        chakra_node(15, "kernel_c", after=(14, 13), took=2, is_cpu_op=False, tid=7, reads=[B, C], writes=[B]),
    ]


def about(graph):
    """Name, duration, and how many tensors with bytes are read and written, of all ops but those of the host."""
    held = {number for number, tensor in enumerate(graph.tensors) if tensor.size_bytes}
    named = [(op.name.partition("/")[2], op) for op in graph.ops]
    return [
        (name, op.duration_ns, len(held.intersection(op.reads)), len(held.intersection(op.writes)))
        for name, op in named
        if name not in ("host", "end")
    ]


def test_kernels_of_an_operator_are_one_op(tmp_path):
    found = read(tmp_path, *launched())
    assert about(found.graph) == [
        ("aten::relu", 9_000, 1, 1),
        ("aten::add_", 2_000, 2, 1),
    ]
    host = [(op.stream, op.duration_ns) for op in found.graph.ops if op.name.endswith("host")]
    assert host == [(0, 0), (0, 33_000)]  # the kernels ran from 3 to 12 us, the host launches the last one at 36 us
    assert found.recorded_ns == 35_000
    assert found.dropped == {"nodes of the host": 3}
    assert found.kept["nodes"] == "6"
    assert "(+0.00 %)" in as_recorded(found.graph, found.recorded_ns)


@pytest.mark.parametrize("took", [5, 0])
def test_arithmetic_is_by_the_shapes_of_what_an_operator_reads(tmp_path, took):
    """Of two kernels of a product once; what the trace states goes before, where nothing has a duration."""
    shapes = {"reads": [[2, 4], [4, 8]], "writes": [[2, 8]]}
    more = {"reads": [A, B], "writes": [C], "shapes": shapes}
    nodes = [chakra_node(1, "aten::mm", is_cpu_op=True, rf_id=1, op_schema=RELU, **more)]
    nodes += [chakra_node(n, "kernel", after=(1,), took=took, is_cpu_op=False, tid=7, **more) for n in (2, 3)]
    nodes += [chakra_node(4, "relu", after=(3,), took=took, is_cpu_op=False, tid=7, reads=[C], writes=[A])]
    found = read(tmp_path, *nodes)
    ops = [(op.op_class, op.flops, op.dtype) for op in found.graph.ops if op.name[-4:] not in ("host", "/end")]
    assert ops == [("matmul", 2 * 2 * 4 * 8, "tf32" if took else "bf16"), ("vector", 0, "tf32" if took else "bf16")]
    assert found.card["arithmetic"] == "128 FLOP a step"
    if not took:
        stated = [*nodes[1:2], chakra_node(5, "up", took=0, is_cpu_op=False, num_ops=77, **more)]
        assert {op.flops for op in read(tmp_path, *nodes[:1], *stated).graph.ops} == {128, 77}


def test_the_order_of_the_file_does_not_matter(tmp_path):
    assert read(tmp_path, *launched()[::-1]).graph == read(tmp_path, *launched()).graph


def test_recorded_starts_are_taken(tmp_path):
    nodes = [
        chakra_node(1, "a", took=5, start=100, tid=1),
        chakra_node(2, "b", took=10, start=103, tid=2, after=(1,)),
        chakra_node(3, "c", took=1, start=120, tid=1, after=(2,)),
    ]
    found = read(tmp_path, *nodes)
    times = [(op.name[2:], op.stream, op.duration_ns) for op in found.graph.ops]
    assert times == [
        *(
            ("a", 0, 5_000),
            ("idle", 1, 3_000),
            ("b", 1, 10_000),
        ),  # it began before a had ended, whatever the trace says
        *(("idle", 0, 7_000), ("c", 0, 1_000), ("end", 0, 0)),
    ]
    assert (found.recorded_ns, replay_recording(found.graph)[0]) == (21_000, 23_000)  # here b waits for a


def test_dependencies_of_nodes_without_tensors_are_tensors_of_no_bytes(tmp_path):
    nodes = [
        chakra_node(1, "a", num_ops=5),
        chakra_node(2, "b", num_ops=5),
        chakra_node(3, "c", after=(1, 2), num_ops=5),
    ]
    graph = read(tmp_path, *nodes).graph
    assert [(op.reads, op.writes) for op in graph.ops] == [((), (0,)), ((), (1,)), ((0, 1), (2,))]
    assert {t.size_bytes for t in graph.tensors} == {0}


def test_collectives_without_a_duration_wait_for_what_they_depend_on(tmp_path):
    nodes = [chakra_node(1, "up", took=9), chakra_node(2, "x", 7, (1,), comm_type=2, comm_size=64)]
    nodes.append(chakra_node(3, "down", took=5, after=(2,)))
    found = read(tmp_path, *nodes, ranks=8)
    assert [(op.duration_ns, op.collective is not None, op.reads) for op in found.graph.ops] == [
        (9_000, False, ()),
        (None, True, (0,)),
        (5_000, False, (1,)),
    ]
    assert found.recorded_ns == 0
    assert "Collectives without a duration take the machine's time" in found.derived[-1]
    alone = read(tmp_path, *nodes)
    assert [op.duration_ns for op in alone.graph.ops] == [9_000, 5_000]
    assert alone.recorded_ns == 14_000


def test_parts_that_lead_in_a_circle_are_no_order(tmp_path):
    nodes = [chakra_node(1, "a", took=1) + message((4, 2)), chakra_node(2, "b", took=1, after=(1,))]
    assert [name for name, *_ in about(read(tmp_path, *nodes).graph)] == ["a", "b"]


def test_collectives_with_times_meet_nobody(tmp_path):
    found = read(tmp_path, chakra_node(1, "x", 7, took=9, comm_type=0, comm_size=64))
    assert [(str(op.kind), op.collective, op.duration_ns) for op in found.graph.ops] == [("collective", None, 9_000)]


@pytest.mark.parametrize(
    ("number", "kind"),
    [(0, "all_reduce"), (2, "all_gather"), (5, "broadcast"), (6, "all_to_all"), (7, "reduce_scatter")],
)
def test_collectives_without_times_meet_as_many_ranks_as_are_asked_for(tmp_path, number, kind):
    nodes = [
        chakra_node(1, "up", num_ops=1000, tensor_size=64),
        chakra_node(2, "x", 7, (1,), comm_type=number, comm_size=64),
    ]
    graph = read(tmp_path, *nodes, ranks=4).graph
    (op,) = (op for op in graph.ops if op.collective)
    assert (str(op.collective.kind), op.collective.size_bytes) == (kind, 64)
    assert graph.groups[0].members == ((0, 1, 2, 3),)
    alone = read(tmp_path, *nodes)
    assert len(alone.graph.ops) == 1
    assert alone.dropped == {"collectives of one rank (--ranks)": 1}


def test_work_without_times_is_the_machines(tmp_path):
    found = read(tmp_path, chakra_node(1, "up", num_ops=1000, tensor_size=64))
    (op,) = found.graph.ops
    assert (op.flops, op.read_bytes, op.duration_ns) == (1000, 64, None)
    assert found.recorded_ns == 0
    assert found.derived == ("Without times a roofline gives them; float counts as bf16.",)


def test_what_is_no_work_is_counted_and_left_out(tmp_path):
    nodes = [chakra_node(n, "x", kind, took=0) for n, kind in enumerate((5, 6, 1, 99, 4), 1)]
    found = read(tmp_path, *nodes)
    assert len(found.graph.ops) == 1
    assert found.dropped == {
        "collectives of one rank (--ranks)": 2,
        "nodes of kind metadata": 1,
        "nodes of kind unknown": 1,
    }


def test_without_a_device_the_nodes_of_the_host_are_the_ops(tmp_path):
    found = read(
        tmp_path, chakra_node(1, "aten::relu(0)", took=3, is_cpu_op=True, op_schema=RELU, reads=[A], writes=[B])
    )
    assert about(found.graph) == [("aten::relu", 3_000, 1, 1)]


@pytest.mark.parametrize("version", ["", "0.0.4", "0.0.5", "1.0.0-rc", "0.1.0", "1.0.0", "1.1.1-chakra.0.0.4"])
def test_versions_from_0_0_4_on_are_read(tmp_path, version):
    assert "Schema" not in str(read(tmp_path, chakra_node(1, "a", took=1), version=version))


def test_a_newer_version_is_read_as_the_newest_that_is_known_and_told(tmp_path):
    told = "Schema 1.2.0 of Chakra is read as 1.0.0, the newest known, without its additions."
    assert told in read(tmp_path, chakra_node(1, "a", took=1), version="1.2.0").derived


@pytest.mark.parametrize(("version", "is_read"), [("1.1.1-chakra.1.0.0", True), ("1.1.1-chakra.2.0.0", False)])
def test_a_version_in_an_attribute_counts_as_well(tmp_path, version, is_read):
    path = tmp_path / "step.et"
    node, about = chakra_node(1, "a", took=1), message((2, message((1, "schema"), (29, version))))
    path.write_bytes(varint(len(about)) + about + varint(len(node)) + node)
    if is_read:
        assert hosim.read_chakra(path).recorded_ns == 1000
        return
    with pytest.raises(ConfigError, match=r"0\.0\.4 to 1\.x of Chakra, found '2\.0\.0'; convert it"):
        hosim.read_chakra(path)


@pytest.mark.parametrize("version", ["0.0.3", "0.0.1", "new", "4", "2.0.0"])
def test_other_versions_are_refused(tmp_path, version):
    with pytest.raises(ConfigError, match=r"hosim reads schemas 0\.0\.4 to 1\.x of Chakra, found "):
        read(tmp_path, chakra_node(1, "a", took=1), version=version)


BROKEN_HEADER = message((1, "0.0.4"), (2, b"W"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x01", "message 0: a Chakra trace is of length-delimited messages, found one that breaks off"),
        (varint(10**9) + b"x", "message 0: .* found one that breaks off"),
        (b"\xff" * 20, "message 0: .* found a number without end"),
        (b"\x01\x0b", "message 0: .* found (a field of wire type 3|one that breaks off)"),
        (chakra(b"\x0b"), "message 1: .* found a field of wire type 3"),
        (chakra(b"\x0a\x7fx"), "message 1: .* found one that breaks off"),
        (chakra(b"\x09xx"), "message 1: .* found one that breaks off"),
        (chakra(), "a recording has ops of a device, found none"),
        (chakra(chakra_node(1, "a"), chakra_node(1, "b")), "message 2: .* each with its own id, found one more"),
        (
            chakra(chakra_node(1, "a", after=(2,)), chakra_node(2, "b", after=(1,))),
            "no node depends on itself, found nodes in a circle",
        ),
        (chakra(chakra_node(1, "x", 1)), "a recording has ops of a device, found none; record with"),
        (chakra(chakra_node(1, "x", 7, comm_type=0)), "found none; say how many ranks meet: --ranks"),
        (b'{"schema": "1.1.0-chakra.0.0.4", "nodes": []}', "message 0"),
        (varint(len(BROKEN_HEADER)) + BROKEN_HEADER, "message 0: .* found a field of wire type 7"),
        (b"\x80\x04\x95", "an input is data, not a program, found a pickle, or an archive"),
    ],
)
def test_broken_traces_are_told(tmp_path, data, message):
    path = tmp_path / "step.et"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        hosim.read_chakra(path)


def test_ranks_are_counted_from_one(tmp_path):
    with pytest.raises(ConfigError, match="ranks meet, found 0; correct --ranks"):
        read(tmp_path, chakra_node(1, "a", took=1), ranks=0)


def test_packed_traces_are_read(tmp_path):
    path = tmp_path / "step.et.gz"
    path.write_bytes(gzip.compress(chakra(*launched())))
    assert about(hosim.read_chakra(path).graph) == about(read(tmp_path, *launched()).graph)


def test_values_that_are_no_json_still_name_their_tensors(tmp_path):
    odd = [[1, 1, 0, 8, 4, "cuda:0"], "it's", None, float("inf"), True]
    found = read(tmp_path, chakra_node(1, "a", took=1, reads=odd, writes=[B]))
    assert about(found.graph) == [("a", 1_000, 1, 1)]


@pytest.mark.skipif(not DATA, reason=ABSENT)
def test_the_published_trace_is_a_resnet_step():
    found = hosim.read_chakra(DATA / "chakra/feeder_tests_trace.tar.gz")
    names = [op.name.partition("/")[2] for op in found.graph.ops]
    counts = {name: names.count(f"aten::{name}") for name in ("conv2d", "batch_norm", "relu_", "convolution_backward")}
    assert counts == {"conv2d": 53, "batch_norm": 53, "relu_": 49, "convolution_backward": 53}
    assert sum(str(op.kind) == "collective" for op in found.graph.ops) == 7
    assert found.kept["nodes"] == "3,664"
    assert "(+0.01 %)" in as_recorded(found.graph, found.recorded_ns)
    flops = sum(found.graph.arithmetic.values())  # torchvision: 4.09 billion multiplications and additions an image
    assert flops == pytest.approx(32 * 3 * 2 * 4.09e9, rel=0.01)
