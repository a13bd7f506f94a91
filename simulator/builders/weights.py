"""The weights of a decoder: their shapes, and how they are cut unless the workload says otherwise.

A linear's weight has inputs and outputs. Cut along its outputs (column), every rank makes a part of the output; cut
along its inputs (row), a partial sum. Megatron alternates the two, so that each pair of linears sums up once; it cuts
the tables along the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from simulator.builders.turns import stage_layers
from simulator.errors import insist
from simulator.layout import Axes, Layout, Mesh, Weight
from simulator.units import counted, nearest, would_divide
from simulator.workload import (
    Absent,
    Attention,
    DecoderModel,
    Dense,
    Experts,
    Gqa,
    Layer,
    Lora,
    Mla,
    Model,
    State,
    Workload,
)

TENSOR = ("tensor",)
EXPERT = ("expert",)
BATCH = ("data", "expert")
"""Axes that cut the samples: expert ranks are replicas as well."""

ADAPTER = ("lora_a", "lora_b")
"""The two matrices of an adapter, by what their names add to that of the linear beside them."""

_COLUMN: tuple[Axes, ...] = ((), TENSOR)
_ROW: tuple[Axes, ...] = (TENSOR, ())
_WHOLE: tuple[Axes, ...] = ((), ())


class Spec(NamedTuple):
    """Shape and cut of a weight.

    Attributes
    ----------
    shape
        Inputs and outputs (of experts behind their number); entries and width of a table; width of a norm.
    tensor_map
        For each dimension, the axes that cut it.
    kind
        Its kind of tensor.
    kv_heads
        How many KV heads its outputs are of, if they are: each is whole on some rank, or on several.
    """

    shape: tuple[int, ...]
    tensor_map: tuple[Axes, ...]
    kind: str = "weight"
    kv_heads: int = 0

    def copied(self, ranks: int) -> tuple[Spec, int]:
        """Return the weight with a KV head for each of so many ranks that cut it, and how many ranks have the same."""
        copies = max(1, ranks // (self.kv_heads or ranks))
        return self._replace(shape=(*self.shape[:-1], self.shape[-1] * copies)), copies


Specs = dict[str, Spec]


def replica_axes(mesh: Mesh) -> Axes:
    """Return the axes that cut the tokens of all samples, the samples first: their ranks are replicas of weights."""
    return tuple([axis for axis in (*BATCH, "context") if axis in mesh.sizes])


@lru_cache(maxsize=16)
def numbered(prefix: str, count: int, digits: int = 1) -> tuple[str, ...]:
    """Return names with numbers of equal width, at least `digits`, so that they sort."""
    width = max(digits, len(str(count - 1)))
    return tuple([f"{prefix}{i:0{width}d}" for i in range(count)])


def blocks(layers: int) -> tuple[str, ...]:
    """Return the names of the layers: ``L00``, ``L01`` ..."""
    return numbered("L", layers, 2)


def specs(model: DecoderModel) -> Iterator[tuple[str, Specs]]:
    """Yield the weights of each part of a model, in the order of their use: ``embed``, the layers, ``head``."""
    h, v, narrow = model.hidden, model.vocabulary, model.embedding_width
    embed, head = {"tokens": Spec((v, narrow or h), _ROW)}, _norms(model, ["norm"] * model.final_norm)
    embed |= {"in": Spec((narrow, h), _WHOLE)} if narrow else {}
    tables = {"positions": model.positions, "segments": model.segments}
    embed |= {name: Spec((rows, h), _WHOLE) for name, rows in tables.items() if rows}
    yield "embed", embed | _norms(model, ["norm"] * model.embedding_norm)
    of_kind = {kind: _layer(model, kind) for kind in model.kinds}
    for index, block in enumerate(blocks(model.layers)):
        yield block, of_kind[model.layer(index)]
    if model.head_transform:
        head |= _biases({"transform": Spec((h, h), _WHOLE)}, model.head_biases) | _norms(model, ["transform.norm"])
    head |= {"out": Spec((h, narrow), _WHOLE)} if narrow else {}
    lm = _biases({"lm": Spec((narrow or h, v), _COLUMN)}, model.head_biases)
    yield "head", head | {name: spec for name, spec in lm.items() if name != "lm" or not model.tied_embeddings}


def _norms(model: DecoderModel, names: Iterable[str], width: int = 0) -> Specs:
    """Return what norms of rows, by default of the residual, have: a scale, and a bias behind it, if any."""
    parts = {"scale": 1, "both": 2, "none": 0}[model.norm_weights]
    return {name: _norm(parts * (width or model.hidden)) for name in names if parts}


def _layer(model: DecoderModel, kind: Layer) -> Specs:
    h, part = model.hidden, kind.attention
    halves = {name for name, half in zip(("norm1", "norm2"), kind, strict=True) if half.kind != "none"}
    norms = _norms(model, [name for name in model.layer_norms if name.partition(".")[0] in halves])
    if isinstance(part, (State, Absent)):
        attention = _state(h, part) if isinstance(part, State) else {}
    else:
        attention = _gqa(model, part) if isinstance(part, Gqa) else _mla(h, part)
        attention |= _sparse(h, part, part.sparse.compress.block) if part.sparse else {}
    attention = {f"attn.{name}": spec for name, spec in attention.items()}
    attention |= {f"state.{name}": spec for name, spec in _state(h, part.beside).items()} if part.beside else {}
    first, between, last = (
        {name: norms[name] for name in names if name in norms}
        for names in (["norm1"], ["norm1.after", "norm1.sum", "norm2"], ["norm2.after", "norm2.sum"])
    )
    return first | attention | between | _feed_forward(h, kind.feed_forward) | last


def _norm(width: int, cut: Axes = ()) -> Spec:
    return Spec((width,), (cut,))


def _biases(specs: Specs, biased: Iterable[str]) -> Specs:
    """Add biases to some of the linears, each behind its matrix and cut like its outputs."""
    both: Specs = {}
    for name, spec in specs.items():
        both[name] = spec
        if name in biased:
            (*many, _, outputs), (*cut_many, _, cut) = spec.shape, spec.tensor_map
            both[f"{name}.bias"] = spec._replace(shape=(*many, outputs), tensor_map=(*cut_many, cut))
    return both


def _gqa(model: DecoderModel, gqa: Gqa) -> Specs:
    h, q, kv = model.hidden, gqa.heads * gqa.head_size, gqa.kv_heads * gqa.head_size
    of_k, of_v = (Spec((h, gqa.kv_heads * n * gqa.views), _COLUMN, kv_heads=gqa.kv_heads) for n in gqa.key_and_value)
    norms = _norms(model, ["q_norm", "k_norm"] if gqa.qk_norms else [], gqa.head_size)
    if gqa.qk_norms == "all":
        norms = {"q_norm": _norm(q, TENSOR), "k_norm": _norm(kv, TENSOR)._replace(kv_heads=gqa.kv_heads)}
    sinks = {"sinks": _norm(gqa.heads, TENSOR)} if gqa.sink_logits else {}
    columns = {"q": Spec((h, q), _COLUMN), "k": of_k} | ({"v": of_v} if gqa.values == "own" else {})
    return _biases(columns | norms | sinks | _gate(h, gqa) | {"o": Spec((gqa.width, h), _ROW)}, _biased(gqa))


def _biased(gqa: Gqa) -> list[str]:
    """Return the matrices with a bias; a gate of each element is a part of the matrix of queries."""
    return [*gqa.biases, *(["gate"] if "q" in gqa.biases and gqa.gate == "elements" else [])]


def _gate(h: int, part: Gqa | Mla) -> Specs:
    widths = {"elements": part.width, "heads": part.heads}
    return {"gate": Spec((h, widths[part.gate]), _COLUMN)} if part.gate else {}


def _state(h: int, part: State) -> Specs:
    maps, specs = {"column": _COLUMN, "row": _ROW, "whole": _WHOLE}, Specs()
    for name, (inputs, outputs, cut, key_heads) in part.weights(h).items():
        shape = (inputs, outputs) if inputs else (outputs,)
        specs[name] = Spec(shape, maps[cut][-len(shape) :], kv_heads=key_heads)
    of = {"in": ("q", "k", "v", "gate", "rates"), "out": ("o",)}
    return _biases(specs, ["rates_out", *(name for end in part.biases for name in of.get(end, ()))])


def _mla(h: int, mla: Mla) -> Specs:
    """Return weights named as published ones, but ``kv_b`` as its two halves: of keys, and of values."""
    latent, r, q = mla.kv_lora_rank, mla.q_lora_rank or 0, mla.heads * (mla.qk_nope + mla.qk_rope)
    queries: Specs = {"q": Spec((h, q), _COLUMN)}
    if r:
        queries = {"q_a": Spec((h, r), _WHOLE), "q_a_norm": _norm(r), "q_b": Spec((r, q), _COLUMN)}
    if indexer := mla.indexer:  # the key's norm has a weight and a bias
        queries["index.q"] = Spec((r, indexer.heads * indexer.head_size), _WHOLE)
        queries["index.k"], queries["index.k_norm"] = Spec((h, indexer.head_size), _WHOLE), _norm(2 * indexer.head_size)
        queries["index.weights"] = Spec((h, indexer.heads), _WHOLE)
    return (
        queries
        | _gate(h, mla)
        | {
            "kv_a": Spec((h, mla.views * mla.latent), _WHOLE),
            "kv_a_norm": _norm(latent),
            "k_b": Spec((latent, mla.heads * mla.qk_nope), _COLUMN),
            "v_b": Spec((latent, mla.heads * mla.v_head), _COLUMN),
            "o": Spec((mla.heads * mla.v_head, h), _ROW),
        }
    )


def _sparse(h: int, attention: Gqa | Mla, block: int) -> Specs:
    """Return three gates for each head, and the MLPs that compress `block` tokens of keys and values, or of latents."""
    specs = {"gate": Spec((h, 3 * attention.heads), _COLUMN)}
    parts, width = (("k.", "v."), attention.head_size) if isinstance(attention, Gqa) else (("",), attention.kv_elements)
    for name in parts:
        for matrix, inputs in (("in", block * width), ("out", width), ("position", block)):
            specs[f"compress.{name}{matrix}"] = Spec((inputs, width), _WHOLE)
    return specs


def _feed_forward(h: int, part: Dense | Experts | Absent) -> Specs:
    if isinstance(part, Absent):
        return {}
    if isinstance(part, Dense):
        return _matrices("ffn", h, part, part.width)
    router = {"ffn.router": Spec((h, part.routed), _WHOLE)}
    bias = {"ffn.router_bias": _norm(part.routed)} if part.router_bias else {}
    width = part.shared * (part.shared_width or part.width)
    shared = _matrices("ffn.shared", h, part.model_copy(update={"biases": False}), width) if part.shared else {}
    shared |= {"ffn.shared_gate": Spec((h, 1), _WHOLE)} if part.shared_gate else {}
    return router | bias | _matrices("ffn", h, part, part.width, part.held) | shared


def _matrices(name: str, h: int, part: Dense | Experts, f: int, experts: int = 0) -> Specs:
    """Return the weights of a feed-forward of width `f`, or of `experts` of them in one."""
    many, cut, kind = ((experts,), (EXPERT,), "expert") if experts else ((), (), "weight")
    wide, narrow = Spec((*many, h, f), (*cut, *_COLUMN), kind), Spec((*many, f, h), (*cut, *_ROW), kind)
    specs = ({f"{name}.gate": wide} if part.gate else {}) | {f"{name}.up": wide, f"{name}.down": narrow}
    return _biases(specs, specs) if part.biases else specs


def _adapted(part: Specs, lora: Lora) -> Specs:
    """Add the adapters beside some weights of a layer; rows go through the narrow width uncut."""
    specs = dict(part)
    for name, spec in part.items():
        shape, cut = spec.shape, spec.tensor_map
        if is_matrix(name, shape) and _fits(name, lora.targets):
            down = Spec((*shape[:-1], lora.rank), (*cut[:-1], ()), spec.kind)
            up = spec._replace(shape=(*shape[:-2], lora.rank, shape[-1]), tensor_map=(*cut[:-2], (), cut[-1]))
            specs |= {f"{name}.{half}": spec for half, spec in zip(ADAPTER, (down, up), strict=True)}
    return specs


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a weight of a layer is a matrix that multiplies rows, or several in one."""
    return len(shape) > 1 and not name.endswith(".bias") and not name.startswith("attn.compress.")


def learns_apart(weight: Weight) -> bool:
    """Return whether a weight is trained by the loss of an indexer alone."""
    return weight.is_trained and "/attn.index." in weight.name


def passes_on(weights: dict[str, Weight]) -> bool:
    """Return whether gradients go on through a part with these weights: one is trained, and does not learn apart."""
    return any(weight.is_trained and not learns_apart(weight) for weight in weights.values())


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_patterns(where: str, patterns: Iterable[str], names: tuple[str, ...]) -> None:
    """Refuse patterns that match no weight."""
    for pattern in patterns:
        fits = any(fnmatchcase(name, pattern) for name in names)
        insist(fits, where, "a pattern is for weights that the model has", repr(pattern), nearest(pattern, names[:12]))


def _check_trained(laid: Laid, frozen: tuple[str, ...]) -> None:
    """Refuse patterns that no weight fits, and a step that trains nothing."""
    where, lora = f"workload {laid.workload.name}", laid.workload.lora
    _check_patterns(f"{where}, frozen", frozen, tuple(laid.by_name))
    if lora and "targets" in lora.model_fields_set:
        of_layers = {name: weight for block in laid.layers for name, weight in laid.weights[block].items()}
        linears = tuple(name for name, weight in of_layers.items() if is_matrix(name, weight.shape))
        _check_patterns(f"{where}, lora.targets", lora.targets, linears)
    is_trained = any(weight.is_trained for weight in laid.by_name.values())
    insist(is_trained, f"{where}, frozen", "something is trained", "all weights frozen", "freeze fewer")


class Laid(NamedTuple):
    """A model as its workload lays it over ranks.

    Attributes
    ----------
    workload, model
        The workload, and the parts of its model.
    mesh
        The ranks.
    weights
        Part of the model (``embed``, ``L00`` ..., ``head``) -> name of a weight in it -> the weight.
    layers
        Layer (``L00`` ...) -> its parts.
    attentions
        Layer -> its attention, with the heads of one rank.
    """

    workload: Workload
    model: DecoderModel
    mesh: Mesh
    weights: dict[str, dict[str, Weight]]
    layers: dict[str, Layer]
    attentions: dict[str, Attention]

    @property
    def by_name(self) -> dict[str, Weight]:
        """All weights by their full names."""
        return {weight.name: weight for part in self.weights.values() for weight in part.values()}


def lay(workload: Workload, model: Model) -> Laid:
    """Lay the weights of a model over the ranks of a workload.

    Raises
    ------
    ConfigError
        If the model cannot be spread over ranks so (the message says what would do); or if a layout fits no weight,
        names axes that cannot cut one, or does not divide.
    """
    where, parallel, matrix = f"workload {workload.name}", workload.parallel, workload.parallel.device_matrix
    _check_divides(workload, model.decoder, where)
    mesh = Mesh((1,) * len(matrix) if parallel.ranks == "one" else tuple(matrix.values()), tuple(matrix))
    parts = dict(zip(blocks(model.layers), map(model.decoder.layer, range(model.layers)), strict=True))
    of_rank = {kind: kind.attention.of_one(mesh.size(TENSOR)) for kind in {*parts.values()}}
    laid = Laid(workload, model.decoder, mesh, {}, parts, {name: of_rank[kind] for name, kind in parts.items()})
    frozen = (("*",) if workload.lora else ()) if workload.frozen is None else workload.frozen
    alike: dict[tuple[str, bool, Spec, tuple[Axes, ...], bool], Weight] = {}  # weights of other layers, if laid alike
    for block, part in specs(laid.model):
        is_layer, weights = block in parts, laid.weights.setdefault(block, {})
        adapted = _adapted(part, workload.lora) if workload.lora and is_layer else part
        for module, spec in adapted.items():
            name = f"{block}/{module}.weight"
            is_frozen = workload.phase != "train" or module == "ffn.router_bias" or _fits(name, frozen)
            is_trained, tensor_map = module.endswith(ADAPTER) or not is_frozen, _tensor_map(workload, name, spec)
            key = module, is_layer, spec, tensor_map, is_trained
            other = alike.get(key)
            if other is None:
                other = alike[key] = _weight(laid, name, spec, tensor_map, is_trained=is_trained)
            weights[module] = Weight(name, *other[1:])
    _check_patterns(f"{where}, parallel.layouts", parallel.layouts, tuple(laid.by_name))
    if workload.phase == "train" and model == workload.model:  # and not the same with fewer layers
        _check_trained(laid, frozen)
    return laid


def _weight(laid: Laid, name: str, whole: Spec, tensor_map: tuple[Axes, ...], *, is_trained: bool) -> Weight:
    """Lay one weight over the ranks."""
    mesh, dtypes, block, module = laid.mesh, laid.workload.dtypes, *name.removesuffix(".weight").split("/")
    layout = Layout(mesh, tensor_map)
    replicas = mesh.real(
        [axis for axis in replica_axes(mesh) if axis not in layout.cut and module != "ffn.router_bias"]
    )
    spec, copies = whole.copied(layout.divisors[-1])
    shape = layout.local_shape(spec.shape, f"workload {laid.workload.name}", name)
    size_bytes = prod(shape) * dtypes.element_bytes
    if block in laid.layers and len(shape) > 1 and not is_trained and not module.endswith(("ffn.router", ".bias")):
        size_bytes = dtypes.matrix_bytes(shape, is_expert=spec.kind == "expert")
    return Weight(name, spec.shape, layout, spec.kind, prod(shape), size_bytes, replicas, is_trained, copies)


def _check_divides(workload: Workload, model: DecoderModel, where: str) -> None:
    """Refuse dimensions that do not divide over ranks; the message says what would."""
    parallel, tokens = workload.parallel, workload.batch * workload.sequence // workload.parallel.context
    has_experts = any(isinstance(kind.feed_forward, Experts) for kind in model.kinds)
    for attention, part in model.kinds:
        whole, kv_heads = {"heads": attention.heads}, attention.kv_heads if isinstance(attention, Gqa) else 0
        if not parallel.layouts:
            whole |= {"ffn": part.width, "vocabulary": model.vocabulary}
        elif workload.phase == "train":  # layouts say what is cut; but at inference heads always are
            whole, kv_heads = {}, 0
        whole |= {"tokens of a micro-batch": tokens} if parallel.sequence else {}
        experts = {"experts": part.routed} if isinstance(part, Experts) else {} if has_experts else {"experts": 1}
        if isinstance(part, Experts) and workload.phase == "train":
            senders = parallel.tensor if parallel.expert > parallel.data else 1
            experts["choices of a rank's tokens"] = tokens * part.top_k // senders
        for axis, lengths in (("context", {"tokens": workload.sequence}), ("tensor", whole), ("expert", experts)):
            parts, most = getattr(parallel, axis), gcd(*lengths.values(), kv_heads * (axis == "tensor"))
            for name, length in lengths.items():
                must, found = f"{axis} divides {', '.join(lengths)}", f"{parts}, and {length} {name}"
                do = would_divide(f"parallel.{axis}", most, parts)
                insist(length % parts == 0, f"{where}, parallel.{axis}", must, found, do)
        tensor, found = parallel.tensor, f"{parallel.tensor}, and {kv_heads} kv_heads"
        must = "tensor divides kv_heads, or is a multiple of them, so that several ranks hold the same one"
        do = would_divide("parallel.tensor", gcd(*whole.values(), kv_heads), tensor)
        fits = kv_heads % tensor == 0 or tensor % kv_heads == 0
        insist(fits, f"{where}, parallel.tensor", must, found, do)
    must, found = "a model with tied embeddings has one stage", f"{parallel.pipeline} stages"
    do = "set pipeline to 1, or tied_embeddings to false"
    insist(not model.tied_embeddings or parallel.pipeline == 1, f"{where}, parallel.pipeline", must, found, do)
    stage_layers(workload, model.layers, where)


def _tensor_map(workload: Workload, name: str, spec: Spec) -> tuple[Axes, ...]:
    """Return the axes that cut each dimension of a weight: the usual ones, or those of the last layout that fits it.

    Raises
    ------
    ConfigError
        If a layout has another number of dimensions, or axes that cannot cut them.
    """
    parallel, tensor_map = workload.parallel, spec.tensor_map
    if spec.kind == "expert" and parallel.expert > parallel.data:
        tensor_map = ((*TENSOR, *EXPERT), *((),) * (len(spec.shape) - 1))
    for pattern, cut in parallel.layouts.items():
        if not fnmatchcase(name, pattern):
            continue
        where = f"workload {workload.name}, parallel.layouts.{pattern}, {name}"
        fits = workload.phase == "train" or not ("/attn." in name or "/state." in name)
        must, do = "at inference each tensor rank has its part of the heads", "name other weights"
        insist(fits, where, must, "a layout for attention", do)
        tensor_map = tuple(() if axis == "none" else (axis,) for axis in cut)
        named = sorted(axis for axis in cut if axis != "none")
        is_expert, usual = ([axes == EXPERT for axes in each] for each in (tensor_map, spec.tensor_map))
        fits = named in ([], ["tensor"], ["expert"], ["expert", "tensor"]) and is_expert == usual
        dimensions = counted(len(spec.shape), "dimension")
        must = f"a layout says for each of {dimensions} of a weight tensor, at most once, or none"
        do = "correct it; only the number of experts is cut by expert, and replicas shard weights by zero_stage: 3"
        insist(fits, where, must, ", ".join(cut), do)
    return tensor_map


def parameters(workload: Workload) -> tuple[int, int] | None:
    """Count the parameters of a workload's model: in all, and those that a token goes through.

    A token goes through the experts that are chosen for it, and through all else, embeddings included, as model cards
    count (DeepSeek-V3, arXiv 2412.19437, section 4.2: 671B and 37B). None without a decoder.
    """
    if workload.decoder is None:
        return None
    laid, every, active = lay(workload, workload.decoder), 0, 0
    for block, weights in laid.weights.items():
        for weight in weights.values():
            count = chosen = prod(weight.whole_shape)
            if weight.kind == "expert" and isinstance(part := laid.layers[block].feed_forward, Experts):
                count, chosen = count // part.held * part.routed, count // part.held * part.top_k
            every, active = every + count, active + chosen
    return every, active
