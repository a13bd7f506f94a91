"""The weights of each part of a decoder: their shapes, and how they are cut unless a workload says otherwise.

A linear's weight has inputs and outputs. Cut along its outputs (column), every rank makes a part of the output; cut
along its inputs (row), a partial sum. Megatron alternates the two, so that each pair of linears sums up once; it cuts
the tables along the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import cycle, islice, repeat
from typing import NamedTuple

from simulator.layout import Axes
from simulator.workload import (
    Absent,
    DecoderModel,
    Dense,
    EndPart,
    Experts,
    Gqa,
    Indexer,
    Layer,
    Mla,
    Mqa,
    Pool,
    Recurrent,
    SharedBlocks,
)

TENSOR = ("tensor",)
EXPERT = ("expert",)
BATCH = ("data", "expert")
"""Axes that cut the samples: expert ranks are replicas as well."""

TABLES = ("registers", "positions", "segments")
"""Fields of a model with the rows of further tables, in the order in which they join."""
_ACROSS = ("norm3", "norm3.after", "norm3.sum")
_COLUMN: tuple[Axes, ...] = ((), TENSOR)
_ROW: tuple[Axes, ...] = (TENSOR, ())
_WHOLE: tuple[Axes, ...] = ((), ())
_NORMED = {"scale": 1, "both": 2, "none": 0}
FP32_BYTES = 4
ID_BYTES = 4


class Spec(NamedTuple):
    """Shape and cut of a weight.

    Attributes
    ----------
    shape
        Inputs and outputs (of experts behind their number); entries and width of a table; width of a norm.
    tensor_map
        For each dimension, the axes that cut it.
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
Parts = list[tuple[str, EndPart]]
"""Parts of an end of a tower, with their names."""


@lru_cache(maxsize=16)
def numbered(prefix: str, count: int, digits: int = 1) -> tuple[str, ...]:
    """Return names with numbers of equal width, at least `digits`, so that they sort."""
    width = max(digits, len(str(count - 1)))
    return tuple([f"{prefix}{i:0{width}d}" for i in range(count)])


def part_prefixes(prefix: str, count: int) -> list[str]:
    """Return the name prefixes of parts that repeat: ``mb0/``, ``mb1/`` ...; an empty one for a single part."""
    return [f"{name}/" for name in numbered(prefix, count)] if count > 1 else [""]


def blocks(layers: int) -> tuple[str, ...]:
    """Return the names of the layers: ``L00``, ``L01`` ..."""
    return numbered("L", layers, 2)


def specs(model: DecoderModel) -> Iterator[tuple[str, Specs]]:
    """Yield the weights of each part of a model, in the order of their use: ``embed``, the layers, ``head``."""
    h, v, narrow = model.hidden, model.vocabulary, model.embedding_width
    rows, cut = (model.embedding_rows, _WHOLE) if model.embedding_rows else (v, _ROW)
    embed, head = {"tokens": Spec((rows, narrow or h), cut)} if v else {}, _residuals(model, "residuals")
    head |= _norms(model, ["norm"] * model.final_norm)
    embed |= _end(h, ends(model)["stem"], repeat(_WHOLE)) if model.stem else {}
    embed |= _biases({"in": Spec((narrow, h), _WHOLE)}, ["in"] * model.head_transform) if narrow else {}
    wide = narrow if narrow and model.head_transform else h  # of what joins the embedding
    embed |= {name: Spec((size, wide), _WHOLE) for name in TABLES if (size := getattr(model, name))}
    embed |= _residuals(model, "residuals") if model.predicted else {}
    if given := model.layer_inputs:
        wide = model.layers * given.width
        embed |= {"layers.tokens": Spec((given.rows, wide), _ROW), "layers.in": Spec((h, wide), _WHOLE)}
        embed["layers.norm"] = _norm(given.width)
    yield "embed", embed | _norms(model, ["norm"] * model.embedding_norm, wide)
    of_kind = {kind: _layer(model, kind) for kind in model.kinds}
    for index, block in enumerate(blocks(model.layers)):
        yield block, of_kind[model.layer(index)]
    if model.head_transform:
        transform = _biases({"transform": Spec((h, wide), _WHOLE)}, model.head_biases)
        head |= transform | _norms(model, ["transform.norm"], wide)
    for merger in islice(ends(model).values(), 1, None) if model.mergers else ():
        head |= _end(h, merger, cycle([_COLUMN, _ROW]))
    head |= {"out": Spec((h, narrow), _WHOLE)} if narrow and model.head and not model.head_transform else {}
    lm = _biases({"lm": Spec((narrow or h, v), _COLUMN)} if model.head else {}, model.head_biases)
    yield "head", head | {name: spec for name, spec in lm.items() if name != "lm" or not model.tied_embeddings}


def ends(model: DecoderModel) -> dict[str, Parts]:
    """Return the parts of the stem and of each merger, with their names."""
    both = zip(("stem", *numbered("merge", len(model.mergers))), (model.stem, *model.mergers), strict=True)
    return {name: [*zip(numbered(f"{name}.", len(parts)), parts, strict=True)] for name, parts in both}


def _end(width: int, parts: Parts, cuts: Iterator[tuple[Axes, ...]]) -> Specs:
    """Return what parts have, the first of which takes rows of this width; ranks cut their linears in turn."""
    specs: Specs = {}
    for name, part in parts:
        joined, several = part.rows * width, 1 + (part.activation == "gated")
        specs |= {f"{name}.norm": _norm(joined * count)} if (count := _NORMED[part.norm or "none"]) else {}
        linear = Spec((part.taken or joined, part.width or 0), next(cuts) if part.width else ())
        linears = dict.fromkeys([name, f"{name}.gate"][: several * bool(part.width)], linear)
        specs |= _biases(linears, [*linears] * part.bias)
        width = part.width or joined
    return specs


def _residuals(model: DecoderModel, name: str) -> Specs:
    """Return what makes weights of residuals from all of them, for their sum.

    In a layer others say what joins each, and how much of each stays in each, if they are mixed.
    """
    h, n, is_end = model.hidden, model.residuals, name == "residuals"
    if model.predicted:
        return {name: Spec((h, (n - 1) * h), _WHOLE)} if is_end else {}
    outputs, parts = (n, 1) if is_end else (n * (2 + n * model.mixed), 2 + model.mixed)
    linear = _biases({name: Spec((n * h, outputs), _WHOLE)}, [name]) | {f"{name}.scale": _norm(parts)}
    return linear if n > 1 else {}


def _predicted(model: DecoderModel) -> Specs:
    """Return what predicts residuals and corrects them: weights of a router of each, and a scale of the first one."""
    h, n = model.hidden, model.residuals
    router = {"residuals.router": Spec((h, n), _WHOLE), "residuals.norm": _norm(h), "residuals.scale": _norm(h)}
    return router | {"residuals.predict": Spec((n, n * n), _WHOLE), "residuals.correct": Spec((n, n), _WHOLE)}


def _norms(model: DecoderModel, names: Iterable[str], width: int = 0) -> Specs:
    """Return what norms of rows, by default of the residual, have: a scale, and a bias behind it, if any."""
    parts = _NORMED[model.norm_weights]
    return {name: _norm(parts * (width or model.hidden)) for name in names if parts}


def _layer(model: DecoderModel, kind: Layer) -> Specs:
    h, part = model.hidden, kind.attention
    halves, across = {"norm1", "norm2", "norm3"}, model.across(kind)
    halves -= {name for name, half in zip(("norm1", "norm2"), kind, strict=True) if half.kind == "none"}
    halves -= {"alone": {"norm1"}, "never": {"norm3"}}.get(across, set())
    norms = _norms(model, [name for name in model.layer_norms if name.partition(".")[0] in halves])
    if isinstance(part, (Recurrent, Absent)) or across == "alone":
        attention = _recurrent(h, part) if isinstance(part, Recurrent) else {}
    elif isinstance(part, Mqa):
        attention = _mqa(h, part)
    else:
        attention = _gqa(model, part) if isinstance(part, Gqa) else _mla(h, part)
        attention |= _sparse(h, part, part.sparse.compress.block) if part.sparse else {}
    attention = {f"attn.{name}": spec for name, spec in attention.items()}
    attention |= {f"state.{name}": spec for name, spec in _recurrent(h, part.beside).items()} if part.beside else {}
    first, between, last = (
        {name: norms[name] for name in names if name in norms}
        for names in (["norm1"], ["norm1.after", "norm1.sum", *_ACROSS, "norm2"], ["norm2.after", "norm2.sum"])
    )
    if across != "never" and isinstance(part, Gqa):
        has_norms = part.qk_norms if across == "alone" else False
        plain = part.model_copy(update={"qk_norms": has_norms, "sink_logits": False, "gate": None, "buckets": 0})
        between = {f"attn.across.{name}": spec for name, spec in _gqa(model, plain).items()} | between
    first = (_residuals(model, "residuals1") if "norm1" in halves else {}) | first
    first = (_predicted(model) if model.predicted else {}) | first
    if rank := model.laurel:
        first |= {"laurel.in": Spec((h, rank), _WHOLE), "laurel.out": Spec((rank, h), _WHOLE)}
        first |= _norms(model, ["laurel.norm"])
    between = (_residuals(model, "residuals2") if "norm2" in halves else {}) | between
    if given := model.layer_inputs:
        last |= {"input.gate": Spec((h, given.width), _WHOLE), "input.out": Spec((given.width, h), _WHOLE)}
        last |= _norms(model, ["input.norm"])
    specs = first | attention | between | _feed_forward(h, kind.feed_forward) | last
    return _shared(model, model.shared, specs) if model.shared and model.is_shared(kind) else specs


def _shared(model: DecoderModel, shared: SharedBlocks, specs: Specs) -> Specs:
    """Widen what takes the embedding beside the residual, and add what each layer has for itself (`is_own`)."""
    h, rank, ends = model.hidden, shared.adapter, [f"attn.{letter}" for letter in "qkv"]
    specs = specs | {name: specs[name]._replace(shape=(2 * h, specs[name].shape[1])) for name in ends}
    specs |= _norms(model, ["norm1"], 2 * h)
    for name in ends if shared.adapts_attention else ():
        wide = specs[name]
        specs[f"{name}.lora_a"] = Spec((2 * h, rank), _WHOLE)
        specs[f"{name}.lora_b"] = wide._replace(shape=(rank, wide.shape[1]))
    inner = {f"{name}.adapter": specs[name]._replace(shape=(rank, specs[name].shape[1])) for name in _INNER if rank}
    return specs | ({"ffn.adapter": Spec((h, rank), _WHOLE)} if rank else {}) | inner | {"block": Spec((h, h), _WHOLE)}


_INNER = ("ffn.gate", "ffn.up")


def is_own(module: str) -> bool:
    """Tell whether a weight of a layer that shares weights is its own."""
    return module == "block" or module.endswith((".adapter", ".lora_a", ".lora_b"))


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
    norms = _norms(model, ["q_norm", "k_norm"][: 2 - gqa.reuses] if gqa.qk_norms else [], gqa.head_size)
    if gqa.qk_norms == "all":
        norms = {"q_norm": _norm(q, TENSOR), "k_norm": _norm(kv, TENSOR)._replace(kv_heads=gqa.kv_heads)}
    of_heads = _of_heads(h, gqa)
    of_heads |= {"relative.bias": Spec((gqa.buckets, gqa.heads), _COLUMN)} if gqa.buckets else {}
    if indexer := gqa.indexer:
        widths = {"index.q": indexer.heads * indexer.head_size, "index.k": indexer.head_size}
        for name, width in widths.items():
            norms |= {name: Spec((h, width), _WHOLE), f"{name}_norm": _norm(indexer.head_size)}
    columns = {"q": Spec((h, q), _COLUMN)} | ({} if gqa.reuses else {"k": of_k})
    columns |= {"v": of_v} if gqa.values == "own" and not gqa.reuses else {}
    biased = {*gqa.biases, "gate"} if "q" in gqa.biases and gqa.gate == "elements" else gqa.biases  # it is a part of q
    return _biases(columns | norms | of_heads | {"o": Spec((gqa.width, h), _ROW)}, biased)


def _of_heads(h: int, part: Gqa | Mla) -> Specs:
    widths, sinks = {"elements": part.width, "heads": part.heads}, {"sinks": _norm(part.heads, TENSOR)}
    gate = {"gate": Spec((h, widths[part.gate]), _COLUMN)} if part.gate else {}
    return gate | (sinks if part.sink_logits else {})


def _recurrent(h: int, part: Recurrent) -> Specs:
    """Return projections, decays, norms, taps of the convolution, and the output projection."""
    width, heads, (key_heads, key), rank = part.width, part.heads, part.key, part.rank or 0
    is_by_element, both = part.decays == "elements", rank + 2 * key

    def column(outputs: int, inputs: int = 0, kv_heads: int = 0) -> Spec:
        return Spec((inputs or h, outputs), _COLUMN, kv_heads=kv_heads)

    def through(name: str, outputs: int) -> Specs:
        low = {f"{name}.a": Spec((h, rank), _WHOLE), f"{name}.b": column(outputs, rank)}
        return low if rank else {name: column(outputs)}

    keys, values, gate = column(key_heads * key, kv_heads=key_heads), {"v": column(width)}, {"gate": column(width)}
    has_both = part.kind == "delta" and not is_by_element  # rates of forgetting as well
    made, rates = {"q": keys, "k": keys, **values}, {"rates": column(heads * (1 + has_both))}
    rates |= through("forget", heads * key) if is_by_element else {}
    steps = {"rates_in": Spec((width, both), _ROW), "rates_norm": _norm(both), "rates_out": column(width, rank)}
    decays = {"mamba": width * (1 + key), "mamba2": 3 * heads, "lru": width, "rwkv": 2 * width}
    decayed = decays.get(part.kind, heads * (1 + key if is_by_element else 2))
    norm, decay = {"norm": _norm(width, TENSOR)}, {"decay": _norm(decayed, TENSOR)}
    specs = {
        "linear": made | gate | norm,
        "delta": made
        | rates
        | (gate if part.whole_gate else through("gate", width))
        | decay
        | {"norm": _norm(part.head_size)},
        "mamba": values | gate | steps | decay,
        "mamba2": made | rates | gate | decay | norm,
        "convolution": made,
        "lru": values | gate | {"gates": column(2 * width, part.head_size)} | decay,
        "rwkv": {"shift": _norm(3 * h), "k": column(width), **values} | gate | decay,
    }[part.kind]
    for name in part.rule.convolved:
        outputs = specs[name].shape[-1] * (part.seen_taps + ("conv" in part.biases))
        specs[f"conv.{name}"] = Spec((outputs,), (TENSOR,), kv_heads=specs[name].kv_heads)
    specs = {name: spec for name, spec in specs.items() if part.norms or not name.endswith("norm")}
    of = {"in": ("q", "k", "v", "gate", "rates"), "out": ("o",)}
    biased = [name for end in part.biases for name in of.get(end, ())]
    return _biases(specs | {"o": Spec((width, h), _ROW)}, ["rates_out", "gates", *biased])


def _queries(h: int, part: Mla | Mqa, width: int, indexer: Indexer | None, key: Specs) -> Specs:
    """Return what makes queries, perhaps of a latent, and scores of an indexer, whose key is made by `key`."""
    specs = {"q": Spec((h, width), _COLUMN)}
    if rank := part.q_lora_rank:
        specs = {"q_a": Spec((h, rank), _WHOLE), "q_a_norm": _norm(rank), "q_b": Spec((rank, width), _COLUMN)}
    if indexer:
        specs |= {"index.q": Spec((rank or h, indexer.heads * indexer.head_size), _WHOLE), **key}
        specs["index.weights"] = Spec((h, indexer.heads), _WHOLE)
    return specs


def _mqa(h: int, mqa: Mqa) -> Specs:
    """Return weights named as those of latent attention, what compresses tokens, and the output in two linears."""
    size, outputs, indexer = mqa.head_size, mqa.out_groups * mqa.out_rank, mqa.indexer
    key = _pool(h, "index.pool", mqa.pool, indexer.head_size) if indexer and mqa.pool else {}
    specs = _queries(h, mqa, mqa.width, indexer, key) | {"kv_a": Spec((h, size), _WHOLE), "kv_a_norm": _norm(size)}
    specs |= _pool(h, "pool", mqa.pool, size) if mqa.pool else {}
    ends = {"o_a": Spec((mqa.width // mqa.out_groups, outputs), _COLUMN), "o": Spec((outputs, h), _ROW)}
    sinks = {"sinks": _norm(mqa.heads, TENSOR)} if mqa.sink_logits else {}
    return specs | sinks | ends


def _pool(h: int, name: str, pool: Pool, width: int) -> Specs:
    """Return what makes the rows that are summed and their weights, the positions of these, and the norm of a sum."""
    wide = pool.rows * width
    specs = {f"{name}.{part}": Spec((h, wide), _WHOLE) for part in ("rows", "weights")}
    return specs | {f"{name}.position.bias": Spec((pool.stride, wide), _WHOLE), f"{name}.norm": _norm(width)}


def _mla(h: int, mla: Mla) -> Specs:
    """Return weights named as published ones, but ``kv_b`` as its two halves: of keys, and of values."""
    latent = mla.kv_lora_rank
    key: Specs = {}
    if (indexer := mla.indexer) and not indexer.again:  # the key's norm has a weight and a bias
        key = {"index.k": Spec((h, indexer.head_size), _WHOLE), "index.k_norm": _norm(2 * indexer.head_size)}
    specs = _queries(h, mla, mla.heads * (mla.qk_nope + mla.qk_rope), indexer if key else None, key)
    specs |= _of_heads(h, mla) | {"kv_a": Spec((h, mla.views * mla.latent), _WHOLE)}
    specs |= {"kv_a_norm": _norm(latent), "k_b": Spec((latent, mla.heads * mla.qk_nope), _COLUMN)}
    specs["v_b"] = Spec((latent, mla.heads * mla.v_head), _COLUMN)
    return specs | {"o": Spec((mla.heads * mla.v_head, h), _ROW)}


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
        shifted = {"ffn.shift": _norm(2 * h), "ffn.receptance": Spec((h, h), _WHOLE)} if part.shifted else {}
        return shifted | _matrices("ffn", h, part, part.width)
    router = {"ffn.router": Spec((h, part.candidates), _WHOLE)}
    bias = {"ffn.router_bias": _norm(part.candidates)} if part.router_bias else {}
    width = part.shared * (part.shared_width or part.width)
    shared = _matrices("ffn.shared", h, part.model_copy(update={"biases": False}), width) if part.shared else {}
    shared |= {"ffn.shared_gate": Spec((h, 1), _WHOLE)} if part.shared_gate else {}
    ends = {"ffn.latent_in": Spec((h, part.latent), _WHOLE)} if part.latent else {}
    experts = _matrices("ffn", part.latent or h, part, part.width, part.held)
    experts |= {"ffn.latent_out": Spec((part.latent, h), _WHOLE)} if part.latent else {}
    return router | bias | ends | experts | shared


def _matrices(name: str, h: int, part: Dense | Experts, f: int, experts: int = 0) -> Specs:
    """Return the weights of a feed-forward of width `f`, or of `experts` of them in one."""
    many, cut, kind = ((experts,), (EXPERT,), "expert") if experts else ((), (), "weight")
    wide, narrow = Spec((*many, h, f), (*cut, *_COLUMN), kind), Spec((*many, f, h), (*cut, *_ROW), kind)
    specs = ({f"{name}.gate": wide} if part.gate else {}) | {f"{name}.up": wide, f"{name}.down": narrow}
    return _biases(specs, specs) if part.biases else specs
