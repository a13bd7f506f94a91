"""Execution traces of PyTorch: what becomes an op and a tensor, alone and with Kineto's times."""

import gzip
import io
import tarfile

import pytest
import recorded
from recorded import ABSENT, ADD, DATA, EMPTY, FILL, MM, RELU, VIEW, node, profiled, saved, tensor, trace, training

import simulator as hosim
from simulator.errors import ConfigError
from simulator.importers.kineto import Timeline
from simulator.importers.operators import OperatorNode, arithmetic, dtype_of, mutated, views
from simulator.run.stories import as_recorded, replay_recording


def read(tmp_path, nodes, **options):
    return hosim.read_pytorch_trace(saved(tmp_path / "step.json", trace(nodes)), **options)


def told(graph, op):
    """Name without number, and sizes of what it reads and writes."""
    return op.name.partition("/")[2], *([graph.tensors[t].size_bytes for t in ids] for ids in (op.reads, op.writes))


def test_ops_that_work_are_ops_and_views_and_wrappers_are_not(tmp_path):
    found = read(tmp_path, training())
    assert [told(found.graph, op) for op in found.graph.ops] == [
        ("aten::mm", [32, 256], [32]),
        ("aten::relu", [32], [32]),
        ("aten::fill_", [], [32]),
        ("aten::mm", [32, 32], [256]),
        ("aten::add_", [256, 256], [256]),
        ("aten::add_", [256, 256], [256]),
    ]
    assert found.kept["nodes"] == "17"
    assert found.dropped == {"nodes that only view, allocate, call others or work on the host": 11}


def test_phases_and_kinds_follow_from_what_holds_an_op(tmp_path):
    graph = read(tmp_path, training()).graph
    assert [op.phase for op in graph.ops] == ["forward"] * 3 + ["backward"] * 2 + ["update"]
    kinds = [(t.size_bytes, str(t.kind), t.persistent) for t in graph.tensors]
    assert kinds == [
        (32, "weight", True),  # x, of float: who knows
        (256, "weight", True),
        (32, "activation", False),
        (32, "activation", False),
        (32, "activation", False),
        (256, "activation", False),
        (256, "gradient", True),
    ]


def test_one_of_several_marked_steps_is_read(tmp_path):
    nodes = []
    for step in range(3):
        a, b = tensor(10, 1, 8), tensor(11 + step, 2 + step, 8 * (step + 1))
        nodes += [
            node(10 * step + 2, 1, f"ProfilerStep#{step + 4}"),
            node(10 * step + 3, 1, "aten::relu", [a], [b], RELU),
        ]
    found = read(tmp_path, nodes)
    assert [told(found.graph, op) for op in found.graph.ops] == [("aten::relu", [32], [64])]
    assert found.derived[0] == "The step is ProfilerStep#5 of 3 marked steps (--step)."
    assert found.dropped["nodes of other steps"] == 4
    assert [told(graph, op)[2] for graph in [read(tmp_path, nodes, step=6).graph] for op in graph.ops] == [[96]]
    with pytest.raises(ConfigError, match="one that the profiler marked, found 3; choose of 4, 5, 6"):
        read(tmp_path, nodes, step=3)


def test_the_old_form_of_a_trace_is_the_same_graph(tmp_path):
    new = hosim.read_pytorch_trace(saved(tmp_path / "step.json", trace(training())))
    old = hosim.read_pytorch_trace(saved(tmp_path / "step.json", recorded.old(trace(training()))))
    assert old.graph == new.graph


def test_a_storage_id_that_is_used_again_is_another_tensor(tmp_path):
    a, b = tensor(10, 1, 100), tensor(11, 2, 50)
    again = tensor(12, 2, 7)
    nodes = [node(1, 0, "aten::relu", [a], [b], RELU), node(2, 0, "aten::relu", [b], [tensor(13, 3, 50)], RELU)]
    nodes += [node(3, 0, "aten::relu", [a], [again], RELU), node(4, 0, "aten::relu", [again], [tensor(14, 4, 7)], RELU)]
    graph = read(tmp_path, nodes).graph
    assert [told(graph, op)[1:] for op in graph.ops] == [([400], [200]), ([200], [200]), ([400], [28]), ([28], [28])]


def test_a_stretched_view_does_not_make_its_storage_larger(tmp_path):
    small, wide = tensor(10, 1, 4), tensor(11, 1, 400)
    nodes = [
        node(
            1, 0, "aten::expand", [small, [100, 4]], [wide], "aten::expand(Tensor(a) self, SymInt[] size) -> Tensor(a)"
        ),
        node(2, 0, "aten::relu", [wide], [tensor(12, 2, 400)], RELU),
    ]
    assert read(tmp_path, nodes).graph.tensors[0].size_bytes == 16


def test_a_slice_is_as_large_as_where_it_ends(tmp_path):
    part = tensor(10, 1, 10, offset=90)
    assert (
        read(tmp_path, [node(1, 0, "aten::relu", [part], [tensor(11, 2, 10)], RELU)]).graph.tensors[0].size_bytes == 400
    )


def test_what_an_op_makes_and_keeps_to_itself_is_its_workspace(tmp_path):
    a, own, b = tensor(10, 1, 8), tensor(11, 2, 1000), tensor(12, 3, 8)
    nodes = [node(1, 0, "aten::relu", [a], [b], RELU), node(2, 1, "aten::empty", [[1000]], [own], EMPTY)]
    found = read(tmp_path, nodes)
    assert [op.workspace_bytes for op in found.graph.ops] == [4000]
    assert found.dropped["nodes folded into the op that they are a part of"] == 1


def test_the_room_of_what_an_op_puts_out_is_no_workspace(tmp_path):
    a, b = tensor(10, 1, 8), tensor(12, 3, 8)
    nodes = [node(1, 0, "aten::relu", [a], [b], RELU), node(2, 1, "aten::empty", [[8]], [b], EMPTY)]
    assert [op.workspace_bytes for op in read(tmp_path, nodes).graph.ops] == [0]


def test_an_op_that_changes_what_none_below_changes_works_itself(tmp_path):
    """As updates in place, which convert a number first: their time is theirs, and not idle."""
    w, number, made = tensor(10, 1, 64), tensor(11, 2, 1), tensor(12, 3, 1)
    copy = node(2, 1, "aten::copy_", [made, number], [made], "aten::copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)")
    graph = read(tmp_path, [node(1, 0, "aten::add_", [w, number], [w], ADD), copy]).graph
    assert [op.name for op in graph.ops] == ["0/aten::add_"]


@pytest.mark.parametrize(("fills", "name"), [(True, "fill_"), (False, "backward")])
def test_an_op_that_makes_room_below_works_unless_something_else_below_fills_it(tmp_path, fills, name):
    """As a backward that asks for the room of all its results, and copies something else."""
    x, made, other = tensor(10, 1, 64), tensor(11, 2, 64), tensor(12, 3, 64)
    room = node(2, 1, "aten::empty", [[64]], [made], EMPTY, types=["GenericList[Int]"])
    filled = made if fills else other
    fill = node(3, 1, "aten::fill_", [filled, 1], [filled], FILL, types=["Tensor(float)", "Int"])
    outer = node(1, 0, "aten::backward", [x], [made], "aten::backward(Tensor x) -> Tensor")
    assert [op.name for op in read(tmp_path, [outer, room, fill]).graph.ops] == [f"0/aten::{name}"]


def test_an_op_that_puts_out_what_none_below_makes_works_itself(tmp_path):
    """As products on the CPU, which copy the bias, and sums, which fill their result first."""
    a, w, out = tensor(10, 1, 64), tensor(11, 2, 64), tensor(12, 3, 64)
    below = node(
        2, 1, "aten::copy_", [out, tensor(13, 4, 8)], [out], "aten::copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)"
    )
    nodes = [node(1, 0, "aten::mm", [a, w], [out], MM, ([[8, 8], [8, 8]], [[8, 8]])), below]
    graph = read(tmp_path, nodes).graph
    assert [(told(graph, op), op.flops) for op in graph.ops] == [(("aten::mm", [256, 256], [256]), 1024)]


def test_an_op_of_which_others_below_make_all_is_only_their_holder(tmp_path):
    a, out = tensor(10, 1, 8), tensor(12, 3, 8)
    nodes = [
        node(1, 0, "aten::sum", [a], [out], RELU),
        node(2, 1, "aten::relu", [a], [tensor(13, 4, 8)], RELU),
        node(3, 1, "aten::tanh", [tensor(13, 4, 8)], [out], RELU),
    ]
    assert [op.name for op in read(tmp_path, nodes).graph.ops] == ["0/aten::relu", "1/aten::tanh"]


def test_lists_of_tensors_are_changed_where_the_schema_says_so(tmp_path):
    schema = "aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar alpha=1) -> ()"
    lists = [[tensor(1, 1, 8), tensor(2, 2, 8)], [tensor(3, 3, 8), tensor(4, 4, 8)], 1]
    graph = read(tmp_path, [node(9, 0, "aten::_foreach_add_", lists, [], schema)]).graph
    assert [(op.reads, op.writes) for op in graph.ops] == [((0, 1, 2, 3), (0, 1))]


def test_tensors_of_the_host_are_left_out_unless_there_are_no_others(tmp_path):
    host = [tensor(n, n, 8, "cpu") for n in (1, 2)]
    alone = node(1, 0, "aten::relu", host[:1], host[1:], RELU)
    assert len(read(tmp_path, [alone]).graph.ops) == 1
    both = read(tmp_path, [alone, node(2, 0, "aten::relu", [tensor(5, 5, 8)], [tensor(6, 6, 8)], RELU)])
    assert len(both.graph.ops) == 1
    assert sum(t.size_bytes for t in both.graph.tensors) == 64


def test_whole_numbers_from_before_are_inputs(tmp_path):
    tokens = node(1, 0, "aten::relu", [tensor(1, 1, 8)], [tensor(2, 2, 8)], RELU, types=["Tensor(long)"])
    assert [str(t.kind) for t in read(tmp_path, [tokens]).graph.tensors] == ["input", "activation"]


def test_what_only_the_update_uses_is_optimizer_state(tmp_path):
    state = node(2, 1, "aten::add_", [tensor(1, 1, 8), tensor(2, 2, 8)], [tensor(1, 1, 8)], ADD)
    graph = read(tmp_path, [node(1, 0, "Optimizer.step#Adam.step"), state]).graph
    assert {str(t.kind) for t in graph.tensors} == {"optimizer_state"}


def collective(number, name="allreduce", size=4, start=0, stride=1, **more):
    facts = {"collective_name": name, "pg_size": size, "pg_name": "3", "in_msg_nelems": 8, "out_msg_nelems": 8}
    facts |= {"global_rank_start": start, "global_rank_stride": stride, **more}
    return node(number, 0, "record_param_comms", [[Y_]], [[Y_]], **facts)


Y_ = tensor(1, 1, 8)


def test_collectives_meet_the_ranks_of_their_group(tmp_path):
    nodes = [collective(1), collective(2, "_allgather_base", 2, pg_name="4"), collective(3, "wait", 1)]
    graph = read(tmp_path, nodes).graph
    assert [(str(op.collective.kind), op.collective.group, op.collective.size_bytes) for op in graph.ops] == [
        ("all_reduce", "group 3", 32),
        ("all_gather", "group 4", 32),
    ]
    assert {group.name: group.members for group in graph.groups} == {
        "group 3": ((0, 1, 2, 3),),
        "group 4": ((0, 1), (2, 3)),
    }
    assert [op.reads for op in graph.ops] == [op.writes for op in graph.ops] == [(0,), (0,)]


def test_groups_that_skip_ranks_cut_all_ranks_likewise(tmp_path):
    graph = read(tmp_path, [collective(1), collective(2, size=2, stride=2, pg_name="x")]).graph
    assert graph.groups[1].members == ((0, 2), (1, 3))


def test_kinetos_times_are_those_of_what_an_op_launched(tmp_path):
    found = read(tmp_path, training(), kineto=saved(tmp_path / "kineto.json", profiled().document))
    graph = found.graph
    named = [(op.name.partition("/")[2], op.stream, op.duration_ns) for op in graph.ops]
    assert [one for one in named if one[0] not in ("host", "end")] == [
        ("aten::mm", 0, 15_000),  # two kernels, and 2 us between them
        ("aten::relu", 0, 5_000),
        ("aten::fill_", 0, 1_000),
        ("aten::mm", 0, 20_000),
        ("aten::add_", 2, 15_000),  # of which the first 10 us beside the product
        ("Memset", 0, 12_000),
        ("aten::add_", 0, 8_000),
    ]
    assert (found.recorded_ns, replay_recording(graph)[0]) == (70_000, 73_000)  # what adds a product waits for it here
    assert "Kernels were matched with ops by the ids of record functions." in found.derived


def test_an_op_that_launched_nothing_takes_no_time_and_holds_up_no_other_stream(tmp_path):
    profile = profiled()
    profile.events = [one for one in profile.events if one.get("args", {}).get("stream") != 8]
    found = read(tmp_path, training(), kineto=saved(tmp_path / "kineto.json", profile.document))
    ops = [op for op in found.graph.ops if op.name.endswith(("mm", "add_"))]
    assert [(op.stream, op.duration_ns) for op in ops] == [(0, 15_000), (0, 20_000), (0, 0), (0, 8_000)]
    assert replay_recording(found.graph)[0] == found.recorded_ns == 70_000


def test_without_ids_the_median_of_the_runs_of_the_same_names_is_taken(tmp_path):
    profile = recorded.Profile()
    for start, took in ((0, 5), (1000, 9), (2000, 7)):
        for n, name in enumerate(("aten::mm", "aten::relu", "aten::fill_", "aten::mm", "aten::add_", "aten::add_")):
            at = start + 20 * n
            profile.op(name, at, took)
            profile.kernel("k", at + 1, at + 500, took)
        profile.op("aten::empty", start + 150, 1)
    found = read(tmp_path, training(), kineto=saved(tmp_path / "kineto.json", profile.document))
    times = [op.duration_ns for op in found.graph.ops if not op.name.endswith(("host", "end"))]
    assert times == [7_000] * 6
    assert found.recorded_ns == 107_000
    assert found.derived[0] == "The traces share no ids: of 3 runs of the same names the median step was taken."
    assert found.dropped["kernels, copies and fills outside of the step"] == 12


def test_without_a_device_ops_take_the_times_of_the_hosts_operators(tmp_path):
    profile = recorded.Profile()
    for number, at, took in ((3, 0, 40), (4, 1, 2), (5, 5, 30), (6, 50, 7), (12, 60, 9)):
        profile.op(f"op{number}", at, took, **{"Record function id": number * 10, "External id": at})
    found = read(tmp_path, training(), kineto=saved(tmp_path / "kineto.json", profile.document))
    times = [(op.name.partition("/")[2], op.duration_ns) for op in found.graph.ops if op.duration_ns]
    mm, relu, back = ("aten::mm", 30_000), ("aten::relu", 7_000), ("aten::mm", 9_000)
    assert times == [mm, ("idle", 15_000), relu, ("idle", 3_000), back]
    assert "Nothing ran on a device: ops take the times of the host's operators." in found.derived
    assert found.graph.arithmetic == read(tmp_path, training()).graph.arithmetic  # nothing is done in idle time


def test_collectives_with_times_meet_nobody(tmp_path):
    profile = recorded.Profile()
    profile.op("record_param_comms", 0, 9, **{"Record function id": 10, "External id": 1})
    profile.kernel("ncclKernel_AllReduce_RING_LL_Sum_float", 1, 50, 40)
    graph = read(tmp_path, [collective(1)], kineto=saved(tmp_path / "k.json", profile.document)).graph
    (op,) = (op for op in graph.ops if op.name.endswith("allreduce"))
    assert (str(op.kind), op.collective, op.duration_ns) == ("collective", None, 40_000)
    assert graph.groups == ()


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (recorded.Profile(), "in the same order, found none of 0 operators"),
        (
            profiled,
            "some consecutive operators of Kineto's have the names of the execution trace, in the same order, found",
        ),
    ],
)
def test_traces_that_do_not_belong_together_are_refused(tmp_path, profile, message):
    profile = profile() if callable(profile) else profile
    for event in profile.events:
        event.get("args", {}).pop("Record function id", None)
    nodes = [
        *training(),
        node(18, 0, "aten::tanh", [recorded.X], [tensor(9, 9, 8)], "aten::tanh(Tensor self) -> Tensor"),
    ]
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, nodes, kineto=saved(tmp_path / "kineto.json", profile.document))


def test_kernels_that_no_op_launched_are_refused(tmp_path):
    profile = profiled()
    profile.events = [event for event in profile.events if event.get("cat") != "cuda_runtime"]
    with pytest.raises(
        ConfigError, match=r"the two traces are of the same run, found no kernel .*; record both at once"
    ):
        read(tmp_path, training(), kineto=saved(tmp_path / "kineto.json", profile.document))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "an execution trace has schema and nodes, found neither, or no list; choose another file"),
        ({"nodes": []}, "schema: hosim reads versions 1 of execution traces, found 'None'"),
        ({"nodes": [], "schema": "2.0.0"}, "schema: hosim reads versions 1 of execution traces, found '2.0.0'"),
        ({"nodes": [], "schema": "1.0.1"}, "a recording has ops of a device, found none"),
        ({"nodes": [1], "schema": "1.0.1"}, r"nodes\[0\]: a node has an id and a name, found 1"),
        ({"nodes": [{"id": 1}], "schema": "1.0.1"}, r"nodes\[0\]: a node has an id and a name"),
        ({"nodes": [{"id": 1, "name": "a"}] * 2, "schema": "1.0.1"}, "each node has its own id, found 1 twice"),
        (
            {"nodes": [{"id": 1, "name": "a", "x": x} for x in (1, "b")], "schema": "1.0.1"},
            "each node has its own id, found 1 twice",
        ),
    ],
)
def test_what_is_no_trace_is_told(tmp_path, document, message):
    with pytest.raises(ConfigError, match=message):
        hosim.read_pytorch_trace(saved(tmp_path / "step.json", document))


def archive(path, files):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_packed_files_and_archives_are_read(tmp_path):
    plain = saved(tmp_path / "step.json", trace(training()))
    graph = hosim.read_pytorch_trace(plain).graph
    packed = tmp_path / "step.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert hosim.read_pytorch_trace(packed).graph == graph
    files = {"._step.json": b"\x00hidden", "step.json": plain.read_bytes(), "other.json": b"{"}
    assert hosim.read_pytorch_trace(archive(tmp_path / "step.tar.gz", files)).graph == graph
    assert hosim.read_pytorch_trace(archive(tmp_path / "step.tgz", files)).graph == graph


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", b"", "a file holds something, found an empty one"),
        (
            "a.json",
            b"\x80\x04\x95rest",
            "an input is data, not a program, found a pickle, or an archive",
        ),
        ("a.pt", b"PK\x03\x04rest", "an input is data, not a program, found a pickle, or an archive"),
        ("a.json", b'{"schema": "1.0.1", "nodes": [', "a.json:1: the file is JSON, found unexpected end of data"),
        ("a.json", b"[" * 10_000 + b"]" * 10_000, "the file is JSON, found recursion limit exceeded|is JSON"),
        ("a.json", b"\xff\xfe{\x00", "a file is text in UTF-8, found UTF-16"),
        ("a.json.gz", gzip.compress(b"{}", mtime=0)[:-9], "a file that gzip compressed is whole, found "),
        ("a.tar.gz", gzip.compress(b"no archive" * 100, mtime=0), "a file of this name is a tar archive"),
        ("a.tar.gz", gzip.compress(b"\x00" * 10_240, mtime=0), "the archive holds a file, found none"),
    ],
)
def test_hostile_files_are_told_in_one_line(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        hosim.read_pytorch_trace(path)


def test_a_bomb_is_read_up_to_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("simulator.importers.recordings.MOST_BYTES", 10_000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 10_000_000))
    with pytest.raises(ConfigError, match="an input has at most 10,000 bytes, unpacked, found more than 10,000"):
        hosim.read_pytorch_trace(path)


def test_a_file_that_claims_more_than_its_archive_is_not_unpacked(tmp_path):
    member = tarfile.TarInfo("huge.json")
    member.size = 10**12
    path = tmp_path / "a.tar"
    path.write_bytes(member.tobuf() + b"\x00" * 10_240)
    with pytest.raises(ConfigError, match="archive"):
        hosim.read_pytorch_trace(path)


def test_names_of_any_kind_become_names_of_ops(tmp_path):
    names = ["=cmd()", "void foo<int>(bar)", "\x1b[31m::op", "(anonymous namespace)::softmax<float>", "", "a" * 5000]
    nodes = [node(n + 1, 0, name, [tensor(1, 1, 8)], [tensor(20 + n, 20 + n, 8)], RELU) for n, name in enumerate(names)]
    assert [op.name for op in read(tmp_path, nodes).graph.ops] == [
        "0/=cmd",
        "1/foo",
        "2/?[31m::op",
        "3/softmax",
        "4/op",
        f"5/{'a' * 100}",
    ]


@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        ("aten::mm", ([[3, 4], [4, 5]], []), ("matmul", 120)),
        ("aten::bmm", ([[2, 3, 4], [2, 4, 5]], []), ("matmul", 240)),
        ("aten::addmm", ([[5], [3, 4], [4, 5]], []), ("matmul", 120)),
        ("aten::linear", ([[3, 4], [5, 4]], []), ("matmul", 120)),
        ("aten::convolution", ([[1, 3, 8, 8], [6, 3, 3, 3]], [[1, 6, 6, 6]]), ("matmul", 2 * 216 * 27)),
        ("aten::convolution_backward", ([[1, 6, 6, 6], [1, 3, 8, 8], [6, 3, 3, 3]], []), ("matmul", 4 * 216 * 27)),
        (
            "aten::_scaled_dot_product_flash_attention",
            ([[1, 2, 16, 8], [1, 2, 32, 8]], []),
            ("attention", 4 * 2 * 16 * 32 * 8),
        ),
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            ([[1, 2, 16, 8], [1, 2, 16, 8], [1, 2, 32, 8]], []),
            ("attention_backward", 10 * 2 * 16 * 32 * 8),
        ),
        ("aten::relu", ([[3, 4]], []), ("vector", 0)),
        ("aten::mm", ([[3, 4]], []), ("matmul", 0)),
        ("aten::mm", (None, None), ("matmul", 0)),
        ("aten::mm", ([["a"], [4, 5]], []), ("matmul", 0)),
        ("aten::mm", ([[-3, 4], [4, 5]], []), ("matmul", 0)),
        ("aten::mm", ([[1 << 39, 1 << 39], [1 << 39, 5]], []), ("matmul", 0)),
    ],
)
def test_arithmetic_follows_from_shapes(name, shapes, expected):
    assert arithmetic(name, *shapes) == expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (ADD, {0}),
        (FILL, {0}),
        (MM, set()),
        (VIEW, set()),
        ("aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar alpha=1) -> ()", {0}),
        ("x::f(Tensor a, int[2] b=[0, 0], *, Tensor(b!)? out=None, Tensor(c!) d) -> ()", {2, 3}),
        ("aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)", {2}),
        ("", set()),
        ("((((", set()),
        (")!", set()),
    ],
)
def test_a_schema_says_what_is_changed(schema, expected):
    assert mutated(schema) == expected


def test_types_name_data_types():
    assert dtype_of(["Int", "Tensor(c10::Half)"], "tf32") == "fp16"
    assert dtype_of(["Tensor(c10::BFloat16)"], "tf32") == "bf16"
    assert dtype_of(["Tensor(float)"], "tf32") == dtype_of(None, "tf32") == dtype_of([3], "tf32") == "tf32"
    assert dtype_of(["Tensor(c10::Float8_e4m3fn)"], "tf32") == "fp8"


@pytest.mark.parametrize(
    "name", ["aten::view", "aten::t", "aten::empty_strided", "aten::detach_", "aten::to", "aten::result_type"]
)
def test_views_and_empty_tensors_do_no_work(name):
    ops = (OperatorNode(1, 0, 0, name, f"{name}(Tensor self)", [], []) for name in (name, "aten::copy_"))
    assert [op.is_operator for op in ops] == [False, True]


def test_tensors_lie_however_deep():
    deep = [[[tensor(1, 2, 3)]], None, "x", [4]]
    assert [(view.tensor, view.storage, view.size_bytes) for view in views(deep)] == [(1, 2, 12)]
    assert list(views([True, 2, 0, 3, 4, "cuda:0"])) == list(views([1, 2, 0, 3, 4, 5])) == []


def test_a_timeline_is_sorted_by_start(tmp_path):
    found = Timeline(saved(tmp_path / "k.json", profiled().document))
    assert [span.start_ns for span in found.device] == sorted(span.start_ns for span in found.device)
    assert len(found.device) == 8


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason=ABSENT)
def test_the_published_trace_of_gpt2_has_its_weights_and_as_many_gradients():
    found = hosim.read_pytorch_trace(DATA / "pytorch_et/hf_GPT2_et.json.tar.gz")
    sizes = {
        kind: [t.size_bytes for t in found.graph.tensors if str(t.kind) == kind] for kind in ("weight", "gradient")
    }
    assert found.kept["nodes"] == "27,156"
    assert sorted(sizes["weight"]) == sorted(sizes["gradient"])
    assert sum(sizes["weight"]) == 4 * 774_030_080  # GPT-2 large: 36 layers of 1,280, 50,257 words, 1,024 positions
    products = 6 * 512 * (36 * 12 * 1280**2 + 50_257 * 1280) + 36 * 6 * 2 * 512**2 * 1280
    assert sum(op.flops for op in found.graph.ops) == products


@pytest.mark.skipif(not DATA, reason=ABSENT)
def test_the_published_pair_is_joined_and_replays_as_recorded():
    pair = DATA / "pytorch_et"
    found = hosim.read_pytorch_trace(pair / "linear_et.json.gz", kineto=pair / "linear_kineto.json.gz")
    assert sum(1 for op in found.graph.ops if op.duration_ns and not op.name.endswith("host")) == 217
    assert "(+0.00 %)" in as_recorded(found.graph, found.recorded_ns)
