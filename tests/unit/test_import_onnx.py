"""Models in ONNX: FLOPs, bytes and lifetimes by closed forms, sizes that are asked for, and files that went wrong."""

from contextlib import suppress
from functools import partial
from math import prod
from random import Random

import pytest

onnx = pytest.importorskip("onnx", reason='onnx is not installed (pip install "hosim[onnx]")')

from examples import examples  # noqa: E402
from google.protobuf import json_format  # noqa: E402
from mutations import broken, changed  # noqa: E402
from onnx import ModelProto, TensorProto, helper  # noqa: E402

import simulator as hosim  # noqa: E402
from simulator.errors import ConfigError  # noqa: E402
from simulator.importers import refuse_foreign  # noqa: E402
from simulator.lifetime import live_bytes  # noqa: E402

LONGEST_MESSAGE = 2000
FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64


def value(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name, shape, kind=FLOAT, *, is_external=False):
    """An initializer, whose bytes are not there if it is external."""
    tensor = TensorProto(name=name, data_type=kind, dims=shape)
    if is_external:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="not_there.bin")
    else:
        tensor.raw_data = bytes(prod(shape) * (2 if kind == HALF else 4))
    return tensor


def numbers(name, values):
    return helper.make_tensor(name, INT64, [len(values)], values)


def saved(folder, nodes, given, made, weights=(), **more):
    graph = helper.make_graph(nodes, "mine", given, made, [*weights])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=imports, **more)
    path = folder / "mine.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def perceptron(folder, rows="batch", **more):
    """Two products with a reshape between, of an open number of rows."""
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["a"], "/up/MatMul"),
        helper.make_node("Relu", ["a"], ["b"], "/Relu"),
        helper.make_node("Reshape", ["b", "shape"], ["c"], "/Reshape"),
        helper.make_node("Gemm", ["c", "down", "bias"], ["y"], "/down/Gemm", transB=1),
    ]
    weights = [
        weight("up", [32, 128]),
        weight("down", [16, 64], **more),
        weight("bias", [16]),
        numbers("shape", [-1, 64]),
    ]
    return saved(folder, nodes, [value("x", [rows, 32])], [value("y", None)], weights)


def test_a_model_is_its_products_and_its_weights(tmp_path):
    found = hosim.read_onnx(perceptron(tmp_path), dim=("batch=8",))
    graph = found.graph
    assert [(op.name, op.flops, op.op_class) for op in graph.ops] == [
        ("0/up/MatMul", 2 * 8 * 32 * 128, "matmul"),
        ("1/Relu", 0, "vector"),
        ("2/down/Gemm", 2 * 16 * 64 * 16, "matmul"),
    ]
    assert {op.dtype for op in graph.ops} == {"fp32"}
    weights = [tensor.size_bytes for tensor in graph.tensors if tensor.kind == "weight"]
    assert sorted(weights) == [4 * 16, 4 * 16 * 64, 4 * 32 * 128]
    held = sum(tensor.size_bytes for tensor in graph.tensors if tensor.persistent)
    assert held == sum(weights) + 4 * 8 * 32
    assert int(live_bytes(graph).max()) == held + 2 * 4 * 8 * 128  # what Relu reads and makes; the view is no third
    (output,) = graph.outputs
    assert graph.tensors[output].size_bytes == 4 * 16 * 16
    assert found.dropped == {"views": 1}
    assert "Sizes that the file leaves open: batch=8." in found.derived


def test_external_data_need_not_be_there(tmp_path):
    inside, outside = (
        hosim.read_onnx(perceptron(tmp_path, 8, is_external=is_external)).graph for is_external in (False, True)
    )
    assert inside == outside


def node_of(kind, given, made, **attributes):
    """An op of such a kind: class, FLOPs, bytes read and written."""

    def run(folder):
        inputs = [value(f"x{index}", shape) for index, shape in enumerate(given)]
        node = helper.make_node(kind, [each.name for each in inputs], ["y"], **attributes)
        (op,) = hosim.read_onnx(saved(folder, [node], inputs, [value("y", made)])).graph.ops
        return op

    return run


KINDS = {
    "MatMul, batched": (node_of("MatMul", [[2, 4, 8], [8, 16]], None), 2 * 2 * 4 * 8 * 16),
    "MatMul of a broadcast matrix": (node_of("MatMul", [[4, 8], [3, 8, 16]], None), 2 * 3 * 4 * 8 * 16),
    "Gemm, turned": (node_of("Gemm", [[8, 4], [8, 16]], None, transA=1), 2 * 4 * 8 * 16),
    "Conv": (node_of("Conv", [[2, 3, 8, 8], [5, 3, 3, 3]], None, pads=[1] * 4), 2 * 2 * 5 * 64 * 27),
    "Conv in groups": (node_of("Conv", [[1, 4, 8], [4, 1, 3]], None, group=4), 2 * 4 * 6 * 3),
    "ConvTranspose": (node_of("ConvTranspose", [[1, 4, 8], [4, 6, 3]], None), 2 * 32 * 18),
    "Attention": (
        node_of("Attention", [[1, 2, 4, 8], [1, 2, 6, 8], [1, 2, 6, 8]], None), 2 * 2 * 4 * 6 * 8 * 2,
    ),
    "LSTM": (node_of("LSTM", [[5, 2, 8], [1, 64, 8], [1, 64, 16]], None, hidden_size=16), 2 * 5 * 2 * 64 * (8 + 16)),
    "Einsum": (node_of("Einsum", [[2, 4, 8], [2, 8, 3]], None, equation="bij, bjk -> bik"), 2 * 2 * 4 * 8 * 3),
    "Einsum with dots": (node_of("Einsum", [[2, 4, 8], [8, 3]], None, equation="...ij,jk->...ik"), 2 * 2 * 4 * 8 * 3),
    "Einsum that only turns": (node_of("Einsum", [[2, 4]], None, equation="ij->ji"), 0),
    "BatchNormalization": (node_of("BatchNormalization", [[2, 3, 4], [3], [3], [3], [3]], None), 0),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_arithmetic_is_a_closed_form(kind, tmp_path):
    made, flops = KINDS[kind]
    op = made(tmp_path)
    assert op.flops == flops
    assert op.op_class == ("attention" if kind == "Attention" else "matmul" if flops else "vector")
    assert op.read_bytes > 0
    assert op.write_bytes > 0


def test_attention_meets_the_keys_of_its_cache(tmp_path):
    given = [value(name, [1, 2, rows, 8]) for name, rows in (("q", 1), ("k", 1), ("v", 1), ("pk", 31), ("pv", 31))]
    node = helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "nk", "nv"])
    (op,) = hosim.read_onnx(saved(tmp_path, [node], given, [value(name, None) for name in ("y", "nk", "nv")])).graph.ops
    assert op.flops == 2 * 2 * 32 * 2 * 8
    assert op.write_bytes == 4 * 2 * 8 * (1 + 32 + 32)


def test_quantized_weights_have_their_bits(tmp_path):
    nodes = [
        helper.make_node("DequantizeLinear", ["packed", "scale"], ["w"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    weights = [weight("packed", [64, 16], TensorProto.INT4, is_external=True), weight("scale", [2, 16], HALF)]
    graph = hosim.read_onnx(
        saved(tmp_path, nodes, [value("x", [4, 64], HALF)], [value("y", None, HALF)], weights)
    ).graph
    assert {t.size_bytes for t in graph.tensors if t.kind == "weight"} == {64 * 16 // 2, 2 * 2 * 16}
    assert [op.dtype for op in graph.ops] == ["fp16", "fp16"]
    assert graph.ops[1].flops == 2 * 4 * 64 * 16


def test_an_embedding_reads_the_rows_that_it_takes(tmp_path):
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    path = saved(tmp_path, [node], [value("ids", [5], INT64)], [value("y", None)], [weight("table", [1000, 8])])
    (op,) = hosim.read_onnx(path).graph.ops
    assert (op.read_bytes, op.write_bytes) == (2 * 5 * 8 * 4, 5 * 8 * 4)


def test_sizes_that_the_host_computes_are_no_ops(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "first"], ["rows"]),
        helper.make_node("Div", ["rows", "two"], ["half"]),  # which onnx does not infer
        helper.make_node("Concat", ["half", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    weights = [numbers("first", [0]), numbers("two", [2]), numbers("rest", [8, 8])]
    found = hosim.read_onnx(saved(tmp_path, nodes, [value("x", ["n", 32])], [value("y", None)], weights), dim=("n=6",))
    assert [(op.name, op.write_bytes) for op in found.graph.ops] == [("0/Relu", 4 * 6 * 32)]
    assert found.dropped == {"sizes and small constants, which the host computes": 4, "views": 1}


def test_a_function_of_the_file_is_what_it_calls(tmp_path):
    inner = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Relu", ["c"], ["d"])]
    function = helper.make_function("own", "Layer", ["a", "b"], ["d"], inner, [helper.make_opsetid("", 23)])
    node = helper.make_node("Layer", ["x", "w"], ["y"], domain="own")
    path = saved(
        tmp_path, [node], [value("x", [2, 8])], [value("y", None)], [weight("w", [8, 8])], functions=[function]
    )
    assert [op.flops for op in hosim.read_onnx(path).graph.ops] == [2 * 2 * 8 * 8, 0]


def test_ops_of_other_domains_move_bytes_and_are_told(tmp_path):
    node = helper.make_node("FastGelu", ["x"], ["h"], domain="com.microsoft")
    path = saved(tmp_path, [node], [value("x", [2, 8])], [value("h", [2, 8])])
    found = hosim.read_onnx(path)
    assert found.dropped == {"arithmetic of com.microsoft FastGelu": 1}
    assert [(op.flops, op.write_bytes) for op in found.graph.ops] == [(0, 64)]


def branch(name):
    return helper.make_graph([helper.make_node("Relu", ["x"], [name])], name, [], [value(name, [2])])


def summing():
    given = [value("before", []), value("each", [])]
    nodes = [helper.make_node("Add", ["before", "each"], ["after"]), helper.make_node("Relu", ["after"], ["out"])]
    return helper.make_graph(nodes, "summing", given, [value("after", []), value("out", [])])


def choosing(name, nodes, made, condition, weights=()):
    """A node that runs a product, whose names others have, too, or else `nodes`."""
    then = [helper.make_node("MatMul", ["x", name], ["inner"]), helper.make_node("Relu", ["inner"], ["then"])]
    then = helper.make_graph(then, "then", [], [value("then", [4, 8])])
    other = helper.make_graph(nodes, "else", [], [value("inner", [4, 8])], weights)
    return helper.make_node("If", [condition], [made], f"/{name}/If", then_branch=then, else_branch=other)


def branching(folder):
    """A model that branches by an input, inside it by a size, and behind it by a constant."""
    few = [helper.make_node("MatMul", ["x", "odd"], ["inner"])]
    rows = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "first"], ["count"]),
        helper.make_node("Equal", ["count", "first"], ["is_none"]),  # not so
        choosing("never", few, "inner", "is_none"),
    ]
    nodes = [
        choosing("up", rows, "h", "asked", [helper.make_tensor("first", INT64, [], [0])]),
        choosing("down", few, "y", "no"),
    ]
    weights = [weight(name, [8, 8]) for name in ("up", "down", "never", "odd")]
    weights.append(helper.make_tensor("no", TensorProto.BOOL, [], [False]))
    given = [value("x", [4, 8]), value("asked", [1], TensorProto.BOOL)]
    return saved(folder, nodes, given, [value("y", [4, 8])], weights)


@pytest.mark.parametrize(("asked", "ops"), [(1, ["MatMul", "Relu", "MatMul"]), (0, ["MatMul", "MatMul"])])
def test_branches_that_are_known_are_what_runs(tmp_path, asked, ops):
    found = hosim.read_onnx(branching(tmp_path), dim=(f"asked={asked}",))
    assert [op.name.rpartition("/")[2].partition("#")[0] for op in found.graph.ops] == ops
    assert sum(op.flops for op in found.graph.ops) == 2 * 2 * 4 * 8 * 8
    assert any("Sizes that the file leaves open" in told for told in found.derived)


WRONG = {
    "open sizes": (
        lambda folder: hosim.read_onnx(perceptron(folder)),
        r"mine\.onnx: all sizes of inputs are known, found batch open; say them: --dim batch=8",
    ),
    "a size of no name": (
        lambda folder: hosim.read_onnx(perceptron(folder, None)), r"found x\.0 open; say them: --dim x\.0=8",
    ),
    "another size": (
        lambda folder: hosim.read_onnx(perceptron(folder), dim=("batch=8", "sequence=4")),
        "--dim: the file leaves that size open, found sequence",
    ),
    "a truth of many elements": (
        lambda folder: hosim.read_onnx(
            saved(folder, [helper.make_node("Identity", ["x"], ["y"])], [value("x", [10**5, 10**5], TensorProto.BOOL)],
                  [value("y", None, TensorProto.BOOL)]), dim=("x=1",)
        ),
        "--dim: an input by which a file branches has one element, found x, 100000 x 100000; leave it out",
    ),
    "no number": (lambda folder: hosim.read_onnx(perceptron(folder), dim=("batch",)), "a size is written batch=8"),
    "an op that nobody knows": (
        lambda folder: hosim.read_onnx(
            saved(folder, [helper.make_node("Own", ["x"], ["h"], domain="own"), helper.make_node("Relu", ["h"], ["y"])],
                  [value("x", [2])], [value("y", [2])])
        ),
        "the size of each value is known, found not that of 'h'",
    ),
    "a branch": (
        lambda folder: hosim.read_onnx(
            saved(folder, [helper.make_node("If", ["c"], ["y"], then_branch=branch("t"), else_branch=branch("e"))],
                  [value("c", [], TensorProto.BOOL), value("x", [2])], [value("y", [2])])
        ),
        "node 'If': the ops are known from the start, found If; say how: --dim c=1, or 0",
    ),
    "a loop": (
        lambda folder: hosim.read_onnx(
            saved(folder, [helper.make_node("Scan", ["x", "x"], ["z", "y"], body=summing(), num_scan_inputs=1)],
                  [value("x", [2])], [value("y", [2])])
        ),
        "node 'Scan': the ops are known from the start, found Scan; export it unrolled, for sizes that are known",
    ),
    "strings": (
        lambda folder: hosim.read_onnx(
            saved(folder, [helper.make_node("Identity", ["x"], ["y"])], [value("x", [2], TensorProto.STRING)],
                  [value("y", [2], TensorProto.STRING)])
        ),
        "found not that of 'x'",
    ),
    "what nobody made": (
        lambda folder: hosim.read_onnx(
            saved(folder, [helper.make_node("Add", ["x", "z"], ["y"])], [value("x", [2])], [value("y", [2])])
        ),
        "each value is made once, before it is read, found 'z'",
    ),
    "what was made before": (
        lambda folder: hosim.read_onnx(
            saved(folder, [helper.make_node("Relu", ["x"], ["y"])] * 2, [value("x", [2])], [value("y", [2])])
        ),
        "each value is made once, before it is read, found 'y'",
    ),
    "no model": (lambda folder: _other(folder, b"no model"), "onnx reads the file"),
    "a pickle": (lambda folder: _other(folder, b"\x80\x04}"), "a pickle"),
    "no file": (lambda folder: hosim.read_onnx(folder / "absent.onnx"), "no such file"),
}  # fmt: skip


def _other(folder, data):
    (folder / "mine.onnx").write_bytes(data)
    return hosim.read_onnx(folder / "mine.onnx")


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_in_one_message(case, tmp_path):
    read, message = WRONG[case]
    with pytest.raises(ConfigError, match=message):
        read(tmp_path)


def test_a_run_of_such_a_file_names_the_import(tmp_path):
    with pytest.raises(ConfigError, match=r"hosim import onnx .*mine\.onnx -o mine\.yaml"):
        refuse_foreign(perceptron(tmp_path), "workload")


def test_what_was_read_runs(tmp_path):
    hosim.read_onnx(perceptron(tmp_path), dim=("batch=8",)).write(tmp_path / "mine.yaml")
    settings = {"hardware.compute.peak.fp32": "60 TFLOP/s"}
    rows = hosim.run(hardware="h100_sxm", workload=tmp_path / "mine.yaml", policies=["resident"], set=settings).summary
    assert list(rows["status"]) == ["ok"]


def spoilt(path, random):
    """A file of which bytes, or fields of its messages, went wrong."""
    data = path.read_bytes()
    if random.random() < 0.3:
        return broken(data, random)
    tree = changed(json_format.MessageToDict(ModelProto.FromString(data)), random)
    with suppress(json_format.ParseError, SystemError, TypeError, ValueError, AttributeError, OverflowError):
        return json_format.ParseDict(tree, ModelProto(), ignore_unknown_fields=True).SerializeToString()
    return broken(data, random)


def one_node(kind):
    """A file with a node of a kind alone."""
    return lambda folder: KINDS[kind][0](folder) and folder / "mine.onnx"


def read(number, folder):
    """Whether a file that went wrong could be read."""
    random = Random(f"onnx {number}")
    make = random.choice([perceptron, partial(perceptron, rows=8), branching, *map(one_node, KINDS)])
    path, dim = make(folder), ("asked=1",) if make is branching else ("batch=8",)
    path.write_bytes(spoilt(path, random))
    message = ""
    try:
        found = hosim.read_onnx(path, dim=dim if random.random() < 0.5 else ())
        assert str(found).replace("\n", "").isprintable()
    except ConfigError as error:
        message = str(error)
    assert len(message) < LONGEST_MESSAGE
    assert message.isprintable()
    return not message


def test_a_file_that_went_wrong_is_read_or_refused(tmp_path):
    assert {read(number, tmp_path) for number in range(30)} == {True, False}


@pytest.mark.slow
def test_many_files_that_went_wrong(tmp_path):
    for number in range(30, 100 + examples(10_000)):
        read(number, tmp_path)
