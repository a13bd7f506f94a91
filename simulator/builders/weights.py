"""The weights of a decoder as a workload lays them over ranks."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from math import gcd, prod
from typing import NamedTuple

from simulator.builders.specs import BATCH, EXPERT, TENSOR, Spec, Specs, blocks, is_own, specs
from simulator.builders.turns import stage_layers
from simulator.errors import ConfigError, insist
from simulator.layout import Axes, Layout, Mesh, Weight
from simulator.units import counted, nearest, would_divide
from simulator.workload import Attention, DecoderModel, Experts, Gqa, Layer, Lora, Model, Mqa, Recurrent, Workload
from simulator.workload.sharding import Format

ADAPTER = ("lora_a", "lora_b")
"""The two matrices of an adapter, by what their names add to that of the linear beside them."""


def replica_axes(mesh: Mesh) -> Axes:
    """Return the axes that cut the tokens of all samples, the samples first: their ranks are replicas of weights."""
    return tuple([axis for axis in (*BATCH, "context") if axis in mesh.sizes])


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
    check_divides(workload, model.decoder, where)
    mesh = Mesh((1,) * len(matrix) if parallel.ranks == "one" else tuple(matrix.values()), tuple(matrix))
    parts = dict(zip(blocks(model.layers), map(model.decoder.layer, range(model.layers)), strict=True))
    of_rank = {kind: kind.attention.of_one(mesh.size(TENSOR)) for kind in {*parts.values()}}
    laid = Laid(workload, model.decoder, mesh, {}, parts, {name: of_rank[kind] for name, kind in parts.items()})
    frozen = (("*",) if workload.lora else ()) if workload.frozen is None else workload.frozen
    sharing = [block for block, kind in parts.items() if laid.model.is_shared(kind)] if laid.model.shared else []
    alike: dict[tuple[str, Spec, tuple[Axes, ...], bool, Format | None], Weight] = {}  # weights of other layers, if so
    for block, part in specs(laid.model):
        is_layer, weights = block in parts, laid.weights.setdefault(block, {})
        adapted = _adapted(part, workload.lora) if workload.lora and is_layer else part
        shared = laid.model.shared if block in sharing else None
        first = sharing[sharing.index(block) % shared.sets] if shared else block
        for module, spec in adapted.items():
            if first != block and not is_own(module):
                weights[module] = laid.weights[first][module]
                continue
            name = f"{block}/{module}.weight"
            is_frozen = workload.phase != "train" or module == "ffn.router_bias" or _fits(name, frozen)
            is_frozen &= workload.lora is None or not module.endswith(ADAPTER)
            is_trained, tensor_map = not is_frozen, _tensor_map(workload, name, spec)
            is_stored = len(spec.shape) > 1 and not is_trained and not module.endswith(".bias")
            kind = spec.kind if is_layer and module != "ffn.router" else ""
            key = module, spec, tensor_map, is_trained, workload.dtypes.format_of(name, kind) if is_stored else None
            other = alike.get(key) or alike.setdefault(key, _weight(laid, name, *key[1:]))
            weights[module] = Weight(name, *other[1:])
    _check_patterns(f"{where}, parallel.layouts", parallel.layouts, tuple(laid.by_name))
    if model == workload.model:  # and not the same with fewer layers
        if workload.phase == "train":
            _check_trained(laid, frozen)
        stored = [name for name, weight in laid.by_name.items() if len(weight.shape) > 1 and not weight.is_trained]
        _check_patterns(f"{where}, dtypes.others", workload.dtypes.others, tuple(stored))
    return laid


def _weight(laid: Laid, name: str, whole: Spec, cut: tuple[Axes, ...], is_trained: bool, kept: Format | None) -> Weight:
    """Lay one weight over the ranks."""
    mesh, layout = laid.mesh, Layout(laid.mesh, cut)
    apart = mesh.sizes if name.endswith("/ffn.router_bias.weight") else layout.cut  # its gradient is not added up
    replicas = mesh.real([axis for axis in replica_axes(mesh) if axis not in apart])
    spec, copies = whole.copied(layout.divisors[-1])
    shape = layout.local_shape(spec.shape, f"workload {laid.workload.name}", name)
    size_bytes = prod(shape) * laid.workload.dtypes.element_bytes
    if kept:  # with scales
        blocks = prod(shape[:-2]) * -(-shape[-2] // kept.block[0]) * -(-shape[-1] // kept.block[1])
        size_bytes = -(-(prod(shape) * kept.bits + blocks * kept.block_bits) // 8)
    return Weight(name, spec.shape, layout, spec.kind, prod(shape), size_bytes, replicas, is_trained, copies)


def check_divides(workload: Workload, model: DecoderModel, where: str) -> None:
    """Refuse dimensions that do not divide over ranks; the message says what would."""
    parallel, tokens = workload.parallel, workload.batch * workload.sequence // workload.parallel.context
    has_experts = any(isinstance(kind.feed_forward, Experts) for kind in model.kinds)
    mixers = ((mixer, part) for kind, part in model.kinds for mixer in (kind, kind.beside) if mixer is not None)
    for mixer, part in mixers:
        whole = {"heads": mixer.heads} | ({"out_groups": mixer.out_groups} if isinstance(mixer, Mqa) else {})
        kv_heads = mixer.kv_heads if isinstance(mixer, (Gqa, Recurrent)) else 0
        if not parallel.layouts:
            whole |= {"ffn": part.width, "vocabulary": model.vocabulary}
        elif workload.phase == "train":  # layouts say what is cut; but at inference heads always are
            whole, kv_heads = {}, 0
        whole |= {"tokens of a micro-batch": tokens} if parallel.sequence else {}
        experts = {"experts": part.routed} if isinstance(part, Experts) else {} if has_experts else {"experts": 1}
        if isinstance(part, Experts) and workload.phase == "train":
            senders = parallel.expert // parallel.expert_replicas
            experts["choices of a rank's tokens"] = int(tokens * part.chosen) // senders
        for axis, lengths in (("context", {"tokens": workload.sequence}), ("tensor", whole), ("expert", experts)):
            parts, most = getattr(parallel, axis), gcd(*lengths.values(), kv_heads * (axis == "tensor"))
            for name, length in lengths.items():
                if length % parts:
                    must, found = f"{axis} divides {', '.join(lengths)}", f"{parts}, and {length} {name}"
                    do = would_divide(f"parallel.{axis}", most, parts)
                    raise ConfigError(f"{where}, parallel.{axis}", must, found, do)
        tensor = parallel.tensor
        if kv_heads % tensor and tensor % kv_heads:
            must = "tensor divides kv_heads, or is a multiple of them, so that several ranks hold the same one"
            do = would_divide("parallel.tensor", gcd(*whole.values(), kv_heads), tensor)
            raise ConfigError(f"{where}, parallel.tensor", must, f"{tensor}, and {kv_heads} kv_heads", do)
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
    if spec.kind == "expert" and parallel.expert > parallel.expert_replicas:
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
        for weight in (weight for weight in weights.values() if weight.name.startswith(f"{block}/")):
            count = chosen = prod(weight.whole_shape)
            if weight.kind == "expert" and isinstance(part := laid.layers[block].feed_forward, Experts):
                count, chosen = count // part.held * part.routed, int(count // part.held * part.chosen)
            every, active = every + count, active + chosen
    return every, active
