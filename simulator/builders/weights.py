"""The weights of a decoder: their shapes, and how they are cut unless the workload says otherwise.

A linear's weight has inputs and outputs. Cut along its outputs (column), every rank makes a part of what it puts out;
cut along its inputs (row), a summand. Megatron alternates the two, so that each pair of linears sums up once; it cuts
the tables along the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from math import gcd, prod
from typing import NamedTuple

from simulator.errors import ConfigError, insist
from simulator.layout import Axes, Layout, Mesh, Weight
from simulator.units import counted, nearest, would_divide
from simulator.workload import (
    Attention,
    DecoderModel,
    Dense,
    Dtypes,
    Experts,
    Gqa,
    Layer,
    Linear,
    LlamaModel,
    Lora,
    Mla,
    Parallel,
    Workload,
    matrix_bytes,
)

TENSOR = ("tensor",)
EXPERT = ("expert",)
BATCH = ("data", "expert")
"""Axes that cut the samples: expert ranks are replicas as well."""

ADAPTER = ("lora_a", "lora_b")
"""The two matrices of an adapter, by the names that theirs add to that of the linear beside which they stand."""

_COLUMN: tuple[Axes, ...] = ((), TENSOR)
_ROW: tuple[Axes, ...] = (TENSOR, ())
_WHOLE: tuple[Axes, ...] = ((), ())


class Spec(NamedTuple):
    """A weight.

    Attributes
    ----------
    shape
        Inputs and outputs, of experts their number before; of a table entries and width; of a norm its width.
    tensor_map
        How it is cut.
    kind
        Its kind of tensor.
    """

    shape: tuple[int, ...]
    tensor_map: tuple[Axes, ...]
    kind: str = "weight"


Specs = dict[str, Spec]


def numbered(prefix: str, count: int, digits: int = 1) -> list[str]:
    """Names with numbers of equal width, of so many digits at least, so that they sort."""
    width = max(digits, len(str(count - 1)))
    return [f"{prefix}{i:0{width}d}" for i in range(count)]


def blocks(layers: int) -> list[str]:
    """Names of the layers: ``L00``, ``L01`` ..."""
    return numbered("L", layers, 2)


def specs(model: DecoderModel) -> Iterator[tuple[str, Specs]]:
    """The weights of the parts of a model, in the order of their use: ``embed``, the layers, ``head``."""
    h, v = model.hidden, model.vocabulary
    yield "embed", {"tokens": Spec((v, h), _ROW)}
    of_kind = {kind: _layer(model, kind) for kind in model.kinds}
    for number, block in enumerate(blocks(model.layers)):
        yield block, of_kind[model.layer(number)]
    yield "head", {"norm": _norm(h)} | ({} if model.tied_embeddings else {"lm": Spec((h, v), _COLUMN)})


def _attention(h: int, part: Attention) -> Specs:
    if isinstance(part, Linear):
        return _linear(h, part.width)
    found = _gqa(h, part) if isinstance(part, Gqa) else _mla(h, part)
    return found | (_sparse(h, part, part.sparse.compress.block) if part.sparse is not None else {})


def _layer(model: DecoderModel, kind: Layer) -> Specs:
    h, part = model.hidden, kind.attention
    attention = _attention(h, part)
    first, second = ({} if model.norms == "before" else {f"{name}.after": _norm(h)} for name in ("norm1", "norm2"))
    attention = {f"attn.{name}": spec for name, spec in attention.items()}
    return {"norm1": _norm(h), **attention, **first, "norm2": _norm(h), **_feed_forward(h, kind.feed_forward), **second}


def _norm(width: int, cut: Axes = ()) -> Spec:
    return Spec((width,), (cut,))


def _biases(specs: Specs, biased: Iterable[str]) -> Specs:
    """The same with biases of some of the linears, each behind its matrix, and cut along the outputs as that is."""
    found: Specs = {}
    for name, spec in specs.items():
        found[name] = spec
        if name in biased:
            *many, _, outputs = spec.shape
            *cut_many, _, cut = spec.tensor_map
            found[f"{name}.bias"] = Spec((*many, outputs), (*cut_many, cut), spec.kind)
    return found


def _gqa(h: int, part: Gqa) -> Specs:
    q, kv, size = part.heads * part.head_size, part.kv_heads * part.head_size, part.head_size
    norms = {"q_norm": _norm(size), "k_norm": _norm(size)} if part.qk_norms else {}
    if part.qk_norms == "all":
        norms = {"q_norm": _norm(q, TENSOR), "k_norm": _norm(kv, TENSOR)}
    sinks = {"sinks": _norm(part.heads, TENSOR)} if part.sink_logits else {}
    widths = {"q": q, "k": kv * part.views, "v": kv * part.views}
    columns = {name: Spec((h, width), _COLUMN) for name, width in widths.items()}
    return _biases(columns | norms | sinks | {"o": Spec((q, h), _ROW)}, part.biases)


def _linear(h: int, width: int) -> Specs:
    columns = {name: Spec((h, width), _COLUMN) for name in ("q", "k", "v", "gate")}
    return columns | {"norm": _norm(width, TENSOR), "o": Spec((width, h), _ROW)}


def _mla(h: int, part: Mla) -> Specs:
    """Names as in the published weights, but ``kv_b`` as its two halves: of keys, and of values."""
    latent, r, q = part.kv_lora_rank, part.q_lora_rank or 0, part.heads * (part.qk_nope + part.qk_rope)
    found: Specs = {"q": Spec((h, q), _COLUMN)}
    if r:
        found = {"q_a": Spec((h, r), _WHOLE), "q_a_norm": _norm(r), "q_b": Spec((r, q), _COLUMN)}
    if indexer := part.indexer:  # the key's norm has a weight and a bias
        found["index.q"] = Spec((r, indexer.heads * indexer.head_size), _WHOLE)
        found["index.k"], found["index.k_norm"] = Spec((h, indexer.head_size), _WHOLE), _norm(2 * indexer.head_size)
        found["index.weights"] = Spec((h, indexer.heads), _WHOLE)
    return found | {
        "kv_a": Spec((h, part.views * part.latent), _WHOLE),
        "kv_a_norm": _norm(latent),
        "k_b": Spec((latent, part.heads * part.qk_nope), _COLUMN),
        "v_b": Spec((latent, part.heads * part.v_head), _COLUMN),
        "o": Spec((part.heads * part.v_head, h), _ROW),
    }


def _sparse(h: int, part: Gqa | Mla, block: int) -> Specs:
    """Three gates for each head, and what compresses so many tokens: of a head's key and value, or of latents."""
    found = {"gate": Spec((h, 3 * part.heads), _COLUMN)}
    parts, width = (("k.", "v."), part.head_size) if isinstance(part, Gqa) else (("",), part.kv_elements)
    for name in parts:
        for what, inputs in (("in", block * width), ("out", width), ("position", block)):
            found[f"compress.{name}{what}"] = Spec((inputs, width), _WHOLE)
    return found


def _feed_forward(h: int, part: Dense | Experts) -> Specs:
    if isinstance(part, Dense):
        return _gated("ffn", h, part.width, biases=part.biases)
    router = {"ffn.router": Spec((h, part.routed), _WHOLE)}
    bias = {"ffn.router_bias": _norm(part.routed)} if part.router_bias else {}
    shared = _gated("ffn.shared", h, part.shared * (part.shared_width or part.width)) if part.shared else {}
    return router | bias | _gated("ffn", h, part.width, part.held, biases=part.biases) | shared


def _gated(name: str, h: int, f: int, experts: int = 0, *, biases: bool = False) -> Specs:
    """A gated feed-forward, or so many of them in one."""
    many, cut, kind = ((experts,), (EXPERT,), "expert") if experts else ((), (), "weight")
    wide, narrow = Spec((*many, h, f), (*cut, *_COLUMN), kind), Spec((*many, f, h), (*cut, *_ROW), kind)
    found = {f"{name}.gate": wide, f"{name}.up": wide, f"{name}.down": narrow}
    return _biases(found, found) if biases else found


def _adapted(part: Specs, lora: Lora) -> Specs:
    """The weights of a layer with those of the adapters beside some; rows go through the narrow width uncut."""
    found = dict(part)
    for name, (shape, cut, kind) in part.items():
        if is_matrix(name, shape) and _fits(name, lora.targets):
            down = Spec((*shape[:-1], lora.rank), (*cut[:-1], ()), kind)
            up = Spec((*shape[:-2], lora.rank, shape[-1]), (*cut[:-2], (), cut[-1]), kind)
            found |= {f"{name}.{which}": spec for which, spec in zip(ADAPTER, (down, up), strict=True)}
    return found


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a weight of a layer is a matrix that multiplies rows, or several in one."""
    return len(shape) > 1 and not name.endswith(".bias") and not name.startswith("attn.compress.")


def learns_apart(weight: Weight) -> bool:
    """Whether a weight is trained by the loss of an indexer alone."""
    return weight.is_trained and "/attn.index." in weight.name


def passes_on(weights: dict[str, Weight]) -> bool:
    """Whether gradients go on through what has these weights: one is trained, and does not learn apart."""
    return any(one.is_trained and not learns_apart(one) for one in weights.values())


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_patterns(where: str, patterns: Iterable[str], known: tuple[str, ...]) -> None:
    """Refuse patterns that no weight fits."""
    for pattern in patterns:
        fits = any(fnmatchcase(name, pattern) for name in known)
        insist(fits, where, "a pattern is for weights that the model has", repr(pattern), nearest(pattern, known[:12]))


def _check_trained(laid: Laid, frozen: tuple[str, ...]) -> None:
    """Refuse patterns that no weight fits, and a step that trains nothing."""
    where, lora = f"workload {laid.workload.name}", laid.workload.lora
    _check_patterns(f"{where}, frozen", frozen, tuple(laid.by_name))
    if lora and "targets" in lora.model_fields_set:
        part = {name: one for block in laid.layers for name, one in laid.weights[block].items()}
        linears = tuple(name for name, one in part.items() if is_matrix(name, one.shape))
        _check_patterns(f"{where}, lora.targets", lora.targets, linears)
    is_trained = any(weight.is_trained for weight in laid.by_name.values())
    insist(is_trained, f"{where}, frozen", "something is trained", "all weights frozen", "freeze fewer")


def size_bytes(weight: Weight, dtypes: Dtypes) -> int:
    """Size of what a rank holds of a weight [B]; matrices of layers but for routers are kept as ``dtypes.weights``."""
    kept = (dtypes.experts if weight.kind == "expert" else None) or dtypes.weights
    is_matrix = len(weight.shape) > 1 and not weight.name.startswith(("embed/", "head/"))
    excepted = weight.is_trained or weight.name.endswith(("/ffn.router.weight", ".bias.weight"))
    if kept is None or not is_matrix or excepted:
        return weight.parameters * dtypes.element_bytes
    return matrix_bytes(kept, weight.layout.local_shape(weight.shape, weight.name))


class Laid(NamedTuple):
    """A model as its workload lays it over ranks.

    Attributes
    ----------
    workload, model
        What runs, and the parts of its model.
    mesh
        The ranks.
    weights
        Part of the model (``embed``, ``L00`` ..., ``head``) -> name of a weight in it -> the weight.
    layers
        Layer (``L00`` ...) -> its parts.
    """

    workload: Workload
    model: DecoderModel
    mesh: Mesh
    weights: dict[str, dict[str, Weight]]
    layers: dict[str, Layer]

    @property
    def by_name(self) -> dict[str, Weight]:
        """All weights by their full names."""
        return {weight.name: weight for part in self.weights.values() for weight in part.values()}


def lay(workload: Workload, model: LlamaModel | DecoderModel) -> Laid:
    """Lay the weights of a model over the ranks of a workload.

    Raises
    ------
    ConfigError
        If the model cannot be spread over ranks so, and what would do; or if a layout fits no weight, names what cannot
        cut one, or does not divide.
    """
    where, parallel, matrix = f"workload {workload.name}", workload.parallel, workload.parallel.device_matrix
    _check_divides(workload, model.decoder, where)
    mesh = Mesh((1,) * len(matrix) if parallel.ranks == "one" else tuple(matrix.values()), tuple(matrix))
    names, parts = blocks(model.layers), map(model.decoder.layer, range(model.layers))
    laid = Laid(workload, model.decoder, mesh, {}, dict(zip(names, parts, strict=True)))
    frozen = (("*",) if workload.lora else ()) if workload.frozen is None else workload.frozen
    for block, part in specs(laid.model):
        adapted = _adapted(part, workload.lora) if workload.lora and block not in ("embed", "head") else part
        for module, spec in adapted.items():
            name, tensor_map = f"{block}/{module}.weight", spec.tensor_map
            if spec.kind == "expert" and parallel.expert > parallel.data:
                tensor_map = ((*TENSOR, *EXPERT), *((),) * (len(spec.shape) - 1))
            for pattern, cut in parallel.layouts.items():
                if fnmatchcase(name, pattern):
                    where_cut = f"{where}, parallel.layouts.{pattern}, {name}"
                    fits = workload.phase == "train" or not module.startswith("attn.")
                    must, do = "at inference each tensor rank has its part of the heads", "name other weights"
                    insist(fits, where_cut, must, "a layout for attention", do)
                    tensor_map = _tensor_map(cut, spec, where_cut)
            layout = Layout(mesh, tensor_map)
            replicas = mesh.real([axis for axis in BATCH if axis not in layout.cut and module != "ffn.router_bias"])
            parameters = layout.local_elements(spec.shape, f"{where}, {name}")
            is_frozen = module == "ffn.router_bias" or _fits(name, frozen) or workload.phase != "train"
            is_trained = module.endswith(ADAPTER) or not is_frozen
            weight = Weight(name, spec.shape, layout, spec.kind, parameters, replicas, is_trained)
            laid.weights.setdefault(block, {})[module] = weight
    _check_patterns(f"{where}, parallel.layouts", parallel.layouts, tuple(laid.by_name))
    if workload.phase == "train" and model == workload.model:  # and not the same with fewer layers
        _check_trained(laid, frozen)
    return laid


def _check_divides(workload: Workload, model: DecoderModel, where: str) -> None:
    """Refuse what does not divide over ranks, with what would."""
    parallel = workload.parallel
    tokens = {"tokens of a micro-batch": workload.batch * workload.sequence} if parallel.sequence else {}
    has_experts = any(isinstance(kind.feed_forward, Experts) for kind in model.kinds)
    for attention, part in model.kinds:
        heads = {"heads": attention.heads} | ({"kv_heads": attention.kv_heads} if isinstance(attention, Gqa) else {})
        whole = heads | {"ffn": part.width, "vocabulary": model.vocabulary}
        if parallel.layouts:  # they say what is cut; but at inference heads always are
            whole = {} if workload.phase == "train" else heads
        experts = {"experts": part.routed} if isinstance(part, Experts) else {} if has_experts else {"experts": 1}
        if isinstance(part, Experts) and workload.phase == "train":
            senders = parallel.tensor if parallel.expert > parallel.data else 1
            experts["choices of a rank's tokens"] = workload.batch * workload.sequence * part.top_k // senders
        for axis, lengths in (("tensor", whole | tokens), ("expert", experts)):
            parts, most = getattr(parallel, axis), gcd(*lengths.values())
            for name, length in lengths.items():
                must, found = f"{axis} divides {', '.join(lengths)}", f"{parts}, and {length} {name}"
                do = would_divide(f"parallel.{axis}", most, parts)
                insist(length % parts == 0, f"{where}, parallel.{axis}", must, found, do)
    must, found = "a model with tied embeddings has one stage", f"{parallel.pipeline} stages"
    do = "set pipeline to 1, or tied_embeddings to false"
    insist(not model.tied_embeddings or parallel.pipeline == 1, f"{where}, parallel.pipeline", must, found, do)
    stage_layers(parallel, model.layers, where)


def stage_layers(parallel: Parallel, layers: int, where: str) -> tuple[int, ...]:
    """Layers of each stage of the pipeline.

    Raises
    ------
    ConfigError
        If the stages have more or fewer layers than the model, or one has none.
    """
    few, more = divmod(layers, parallel.pipeline)
    found = parallel.layers or tuple(few + (stage < more) for stage in range(parallel.pipeline))
    must, do = f"each stage has some of the model's {layers} layers", f"set pipeline to at most {layers}"
    said = f"{parallel.pipeline} stages"
    if parallel.layers:
        must, do = f"the stages have the {layers} layers of the model, and one at least", "correct parallel.layers"
        said = ", ".join(map(str, found))
    insist(sum(found) == layers and 0 not in found, f"{where}, parallel.pipeline", must, said, do)
    return found


def _tensor_map(cut: tuple[str, ...], spec: Spec, where: str) -> tuple[Axes, ...]:
    """What a layout of a workload says of a weight.

    Raises
    ------
    ConfigError
        If it cuts another number of dimensions, or by what cannot cut them.
    """
    axes = [() if axis == "none" else (axis,) for axis in cut]
    named = sorted(axis for axis in cut if axis != "none")
    is_expert, usual = ([axis == EXPERT for axis in one] for one in (axes, spec.tensor_map))
    if named not in ([], ["tensor"], ["expert"], ["expert", "tensor"]) or is_expert != usual:
        dimensions = counted(len(spec.shape), "dimension")
        must = f"a layout says for each of {dimensions} of a weight tensor, at most once, or none"
        do = "correct it; only the number of experts is cut by expert, and replicas shard weights by zero_stage: 3"
        raise ConfigError(where, must, ", ".join(cut), do)
    return tuple(axes)


def parameters(workload: Workload) -> tuple[int, int] | None:
    """Count the parameters of a workload's model: in all, and those that a token goes through.

    A token goes through the experts that are chosen for it, and through all else, embeddings included, as model cards
    count (DeepSeek-V3, arXiv 2412.19437, section 4.2: 671B and 37B). None without a model.
    """
    if workload.model is None:
        return None
    every = active = 0
    laid = lay(workload, workload.model)
    for block, weights in laid.weights.items():
        for weight in weights.values():
            number, share = prod(weight.shape), (1, 1)
            if weight.kind == "expert" and isinstance(part := laid.layers[block].feed_forward, Experts):
                number, share = number // part.held * part.routed, (part.top_k, part.routed)
            every, active = every + number, active + number * share[0] // share[1]
    return every, active
