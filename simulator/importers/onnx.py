"""Models in ONNX: each node is an op, initializers are weights. No weight is looked at.

Sizes are those that onnx infers from those of the inputs; what computes sizes is computed, and no op. Nor is a view.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from simulator import inputs
from simulator.errors import ConfigError, import_extra, insist
from simulator.graph_builder import OpFields
from simulator.importers.imported import FACTS, Imported
from simulator.importers.recordings import Event, Recording, Storage, short

_MOST_BYTES = 2_147_483_647  # of protocol buffers
_BOOL = 9  # of TensorProto.DataType
_FEW = 128  # so many whole numbers are sizes or axes, perhaps
_MOST_ROUNDS = 200  # of computing sizes and inferring more: a layer asks for a few
_HOST, _VIEWS = (frozenset(FACTS["onnx"][part].split()) for part in ("sizes", "views"))
_BITS, _DTYPES = FACTS["onnx"]["bits"], FACTS["onnx"]["dtypes"]
_Shape = Sequence[int]


def _sums(equation: str, _: _Shape, *given: _Shape) -> int:
    """Count what an equation multiplies and adds up; sizes that stand for ``...`` come first."""
    terms, sizes = equation.replace(" ", "").partition("->")[0].split(","), dict[str | int, int]()
    for term, shape in zip(terms, given, strict=True):
        letters = [*reversed(term.replace("...", "")), *range(len(shape))]
        for letter, size in zip(letters, reversed(shape), strict=False):
            sizes[letter] = max(size, sizes.get(letter, 0))
    return 2 * prod(sizes.values()) if len(terms) > 1 else 0


def _pairs(_: str, made: _Shape, query: _Shape, key: _Shape, *more: _Shape) -> int:
    """Count the products of each query with the keys, those of the cache included, and of their weights with values."""
    cached = more[2][-2] if len(more) > 2 and more[2] else 0
    return 2 * (key[-2] + cached) * (prod(query) + prod(made))


# Kind of a node -> FLOPs, of its equation and the shapes of its first output and of its inputs.
_FLOPS: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), lambda _, made, rows, *__: 2 * prod(made) * rows[-1]),
    **dict.fromkeys(("Conv", "ConvInteger"), lambda _, made, __, kernel, *___: 2 * prod(made) * prod(kernel[1:])),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), lambda _, __, x, w, r, *___: 2 * x[0] * x[1] * (prod(w) + prod(r))),
    "Attention": _pairs,
    "ConvTranspose": lambda _, __, given, kernel, *___: 2 * prod(given) * prod(kernel[1:]),
    "Einsum": _sums,
    "Gemm": lambda _, made, rows, *__: 2 * prod(rows) * made[-1],
    "QLinearConv": lambda _, made, given, __, ___, kernel, *____: 2 * prod(made) * prod(kernel[1:]),
}


def read_onnx(source: str | Path, *, dim: tuple[str, ...] = ()) -> Imported:
    """Read a model in ONNX: its ops, with the FLOPs of products, and its weights, of which only the sizes are read.

    Parameters
    ----------
    source
        The file; those that hold its external data need not be there.
    dim
        Size of a dimension that the file leaves open, such as ``batch=8``, or an input by which it branches, as 0 or 1;
        repeat it for several.

    Raises
    ------
    ConfigError
        If onnx is not installed, the file is wrong, or not all sizes are known.
    """
    path, where, install = Path(source), inputs.shown(Path(source)), 'run: pip install "hosim[onnx]"'
    modules = ("onnx", "onnx.inliner", "onnx.reference")
    onnx, inliner, _ = import_extra("hosim.read_onnx", "a model in ONNX is read by onnx", install, *modules)
    data = inputs.whole(path, _MOST_BYTES)
    inputs.data_only(data[:8], path)
    try:
        model = onnx.ModelProto.FromString(data)
        _set_sizes(onnx, model.graph, dim, where)
        graph, sizes = _inferred(onnx, inliner.inline_local_functions(model))
        recording = _Nodes(graph, sizes, onnx.TensorProto.DataType.Name, where).recording
    except Exception as error:
        must, do = "onnx reads the file, and infers its sizes", "export it again, or look into it with onnx.checker"
        wrong = ConfigError(where, must, f"{type(error).__name__}: {error}", do)
        raise error if isinstance(error, ConfigError) else wrong from None
    recording.derived.append("FLOPs are those of products, convolutions, recurrent layers, and attention of all pairs.")
    recording.derived += [f"Sizes that the file leaves open: {', '.join(dim)}."] if dim else []
    return recording.imported(path, "The model")


def _set_sizes(onnx: Any, graph: Any, dim: tuple[str, ...], where: str) -> None:
    """Set the sizes that a file leaves open, and inputs by which it branches; forget the values of weights."""
    odd = next((text for text in dim if not re.fullmatch(r".+=\d{1,9}", text)), None)
    insist(odd is None, "--dim", "a size is written batch=8", repr(odd))
    given, used, asked = dict[str, str](text.rpartition("=")[::2] for text in dim), set[str](), dict[str, None]()
    for tensor in graph.initializer:
        if prod(tensor.dims) > _FEW:
            tensor.ClearField("raw_data")
    weights = {tensor.name for tensor in graph.initializer}
    for info in [each for each in graph.input if each.name in given and each.type.tensor_type.elem_type == _BOOL]:
        shape = [size.dim_value or 1 for size in _sizes(info)]
        must, do = "an input by which a file branches has one element", "leave it out"
        insist(set(shape) <= {1}, "--dim", must, f"{info.name}, {' x '.join(map(str, shape))}", do)
        is_on = np.full(shape, given[info.name] != "0")
        graph.initializer.append(onnx.numpy_helper.from_array(is_on, info.name))
        graph.input.remove(info)
        used.add(info.name)
    for infos in (graph.input, graph.value_info, graph.output):
        for info, axis, size in [(each, *pair) for each in infos for pair in enumerate(_sizes(each))]:
            key = size.dim_param or f"{info.name}.{axis}"
            if not size.HasField("dim_value") and key in given:
                size.dim_value = int(given[key])
                used.add(key)
            elif not size.HasField("dim_value") and infos is graph.input and info.name not in weights:
                asked[key] = None
    do = f"say them: --dim {' --dim '.join(f'{key}=8' for key in asked)}"
    insist(not asked, where, "all sizes of inputs are known", f"{', '.join(asked)} open", do)
    odd = ", ".join(sorted(given.keys() - used))
    insist(not odd, "--dim", "the file leaves that size open", odd, "correct its name")


def _sizes(info: Any) -> Any:
    return info.type.tensor_type.shape.dim


def _shapes(graph: Any) -> dict[str, list[int]]:
    """Return the shapes that are known, by the name of the value."""
    return {
        info.name: [size.dim_value for size in _sizes(info)]
        for info in (*graph.input, *graph.value_info, *graph.output)
        if info.type.tensor_type.HasField("shape") and all(size.HasField("dim_value") for size in _sizes(info))
    }


def _is_few(tensor: Any) -> bool:
    return prod(tensor.dims) <= _FEW and not tensor.data_location


def _branch(node: Any, *, is_then: bool) -> Any:
    """Return the branch of an ``If`` that runs, which makes its outputs, under names of its own."""
    branch = next(each.g for each in node.attribute if each.name == ("then_branch" if is_then else "else_branch"))
    made = [name for inner in branch.node for name in inner.output if name]
    names = {name: f"{node.output[0]}/{name}" for name in (*made, *(tensor.name for tensor in branch.initializer))}
    ends = [(names.get(made.name, made.name), out) for made, out in zip(branch.output, node.output, strict=True)]
    _rename(branch, names)
    branch.node.extend(type(node)(op_type="Identity", input=[name], output=[out]) for name, out in ends)
    return branch


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Rename values in a graph, and in those of its nodes."""
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        node.input[:], node.output[:] = ([names.get(name, name) for name in part] for part in (node.input, node.output))
        for inner in (each.g for each in node.attribute if each.HasField("g")):
            _rename(inner, names)
            for end in inner.output:
                end.name = names.get(end.name, end.name)


def _inferred(onnx: Any, model: Any) -> tuple[Any, set[str]]:
    """Return the graph, with sizes as far as they are known, and the names of what computes them: that is computed."""
    few = filter(_is_few, model.graph.initializer)
    values, computed = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in few}, set[str]()
    for _ in range(_MOST_ROUNDS):
        model, before = onnx.shape_inference.infer_shapes(model, data_prop=True), len(computed)
        shapes, left, branched = _shapes(model.graph), list[Any](), 0
        for node in model.graph.node:
            if node.op_type == "If" and (value := values.get(node.input[0])) is not None:
                branch = _branch(node, is_then=bool(np.all(value)))
                values |= {each.name: onnx.numpy_helper.to_array(each) for each in branch.initializer if _is_few(each)}
                model.graph.initializer.extend(branch.initializer)
                left, branched = [*left, *branch.node], branched + 1
                continue
            given: dict[str, Any] = {name: values.get(name) for name in node.input if name}
            if node.op_type in ("Shape", "Size") and node.input[0] in shapes:
                given[node.input[0]] = np.broadcast_to(np.float32(0), shapes[node.input[0]])  # takes no room
            left.append(node)
            is_small = prod(shapes.get(node.output[0], [_FEW + 1])) <= _FEW
            if node.op_type in _HOST and is_small and all(value is not None for value in given.values()):
                with suppress(Exception), np.errstate(all="ignore"):  # then its sizes stay unknown
                    (value,) = onnx.reference.ReferenceEvaluator(node).run(None, given)
                    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), node.output[0]))
                    values[node.output[0]] = value
                    computed.add(left.pop().output[0])
        del model.graph.node[:]
        model.graph.node.extend(left)
        if len(computed) == before and not branched:
            break
    return model.graph, computed


class _Nodes:
    """Reads the nodes of a graph, of which all sizes are known, into a recording."""

    def __init__(self, graph: Any, sizes: set[str], type_name: Callable[[int], str], where: str) -> None:
        self.recording, self._where, self._storages, self._sizes = Recording(), where, dict[str, Storage](), sizes
        self.recording.dropped["sizes and small constants, which the host computes"] = len(sizes)
        infos, self._shapes = (*graph.input, *graph.value_info, *graph.output), _shapes(graph)
        self._types = {info.name: type_name(info.type.tensor_type.elem_type) for info in infos}
        for tensor in graph.initializer:
            self._types[tensor.name], self._shapes[tensor.name] = type_name(tensor.data_type), [*tensor.dims]
            if tensor.name not in sizes:
                self._add_constant(tensor.name)
        self._inputs = {info.name for info in graph.input}
        for info in graph.input:
            if info.name not in self._storages and info.name not in self._sizes:
                self._storages[info.name] = self._storage(info.name, "input", persistent=True)
        for node in graph.node:
            self._read(node, [name for name in node.input if name], [name for name in node.output if name])
        for info in graph.output:
            if info.name in self._storages:
                self._storages[info.name].stays = True

    def _size(self, name: str) -> int:
        """Return the size of a value [B]."""
        type_, shape = self._types.get(name, ""), self._shapes.get(name, ())
        bits = int((re.findall(r"\d+", type_) or [_BITS.get(type_, 0)])[0])
        must, do = "the size of each value is known", "export it with sizes that are known, or simplify it"
        insist(bits and min(shape, default=0) >= 0, self._where, must, f"not that of {name!r}", do)
        return -(-prod(shape) * bits // 8)

    def _storage(self, name: str, kind: str = "activation", *, persistent: bool = False) -> Storage:
        return self.recording.storage(self._size(name), kind, persistent=persistent)

    def _add_constant(self, name: str) -> None:
        """Add what the file holds; a few whole numbers are sizes or axes."""
        if self._types[name] in ("INT64", "INT32") and prod(self._shapes[name]) <= _FEW:
            self._sizes.add(name)
        else:
            self._storages[name] = self._storage(name, "weight", persistent=True)

    def _read(self, node: Any, given: list[str], made: list[str]) -> None:
        label, folded = f"{self._where}: node {node.name or node.op_type!r}", self.recording.dropped
        is_open = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        do = "export it unrolled, for sizes that are known"
        if node.op_type == "If":
            is_input = given[0] in self._inputs
            do = f"say how: --dim {given[0]}=1, or 0" if is_input else "export the branch that runs alone"
        insist(not is_open, label, "the ops are known from the start", node.op_type, do)
        is_made = {name: name in self._storages or name in self._sizes for name in (*given, *made)}
        odd = next((name for name, is_there in is_made.items() if is_there != (name in given)), None)
        insist(odd is None, label, "each value is made once, before it is read", repr(odd), "export it again")
        if node.op_type == "Constant":
            self._add_constant(made[0])
        elif node.op_type in _VIEWS and given[0] in self._storages:
            self._storages[made[0]] = self._storages[given[0]]
            folded["views"] += 1
        else:
            self.recording.ops.append(self._op(node, given, made))
            folded[f"arithmetic of {node.domain} {node.op_type}"] += node.domain not in ("", "ai.onnx")

    def _op(self, node: Any, given: list[str], made: list[str]) -> Event:
        self._storages |= {name: self._storage(name) for name in made}
        reads = dict.fromkeys(self._storages[name] for name in given if name in self._storages)
        writes = dict.fromkeys(self._storages[name] for name in made)
        read_bytes, write_bytes = (sum(storage.size_bytes for storage in used) for used in (reads, writes))
        if node.op_type.startswith("Gather"):
            read_bytes = min(read_bytes, 2 * write_bytes)
        types = [self._types[name].removeprefix("U") for name in (*given, *made) if name in self._types]
        dtype = next((_DTYPES[start] for type_ in types for start in _DTYPES if type_.startswith(start)), "fp32")
        equation = next((attribute.s.decode() for attribute in node.attribute if attribute.name == "equation"), "")
        count = _FLOPS.get(node.op_type)
        flops = count(equation, *(self._shapes.get(name, ()) for name in (made[0], *node.input))) if count else 0
        kind = "attention" if node.op_type == "Attention" else "matmul" if flops else "vector"
        more = OpFields(read_bytes=read_bytes, write_bytes=write_bytes, dtype=dtype, flops=flops, op_class=kind)
        return Event(short(node.name.strip("/") or node.op_type), reads, writes, more)
