"""The weights of attention, and of layers with a state: their shapes, and how they are cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from simulator.layout import Axes
from simulator.workload import Attention, DecoderModel, Gqa, Mla, Recurrent

TENSOR = ("tensor",)
EXPERT = ("expert",)
BATCH = ("data", "expert")
"""Axes that cut the samples: expert ranks are replicas as well."""

COLUMN: tuple[Axes, ...] = ((), TENSOR)
ROW: tuple[Axes, ...] = (TENSOR, ())
WHOLE: tuple[Axes, ...] = ((), ())


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


def mixer_specs(model: DecoderModel, part: Attention) -> Specs:
    """Return the weights of a layer that are of its attention, and of the part with a state beside that."""
    if isinstance(part, Recurrent):
        attention = _recurrent(model.hidden, part)
    else:
        attention = (
            _gqa(model, part) if isinstance(part, Gqa) else _mla(model.hidden, part) if isinstance(part, Mla) else {}
        )
        attention |= _sparse(model.hidden, part, part.sparse.compress.block) if part.sparse else {}
    beside = _recurrent(model.hidden, part.beside) if part.beside else {}
    named = {"attn": attention, "state": beside}
    return {f"{mixer}.{name}": spec for mixer, specs in named.items() for name, spec in specs.items()}


def norms(model: DecoderModel, names: Iterable[str], width: int = 0) -> Specs:
    """Return what norms of rows, by default of the residual, have: a scale, and a bias behind it, if any."""
    parts = {"scale": 1, "both": 2, "none": 0}[model.norm_weights]
    return {name: norm(parts * (width or model.hidden)) for name in names if parts}


def norm(width: int, cut: Axes = ()) -> Spec:
    """Return a vector."""
    return Spec((width,), (cut,))


def biases(specs: Specs, biased: Iterable[str]) -> Specs:
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
    of_heads = norms(model, ["q_norm", "k_norm"] if gqa.qk_norms else [], gqa.head_size)
    if gqa.qk_norms == "all":
        of_heads = {"q_norm": norm(q, TENSOR), "k_norm": norm(kv, TENSOR)._replace(kv_heads=gqa.kv_heads)}
    sinks = {"sinks": norm(gqa.heads, TENSOR)} if gqa.sink_logits else {}
    of_kv = Spec((h, kv * gqa.views), COLUMN, kv_heads=gqa.kv_heads)
    columns = {"q": Spec((h, q), COLUMN), "k": of_kv, "v": of_kv}
    return biases(columns | of_heads | sinks | _gate(h, gqa) | {"o": Spec((q, h), ROW)}, _biased(gqa))


def _biased(gqa: Gqa) -> list[str]:
    """Return the matrices with a bias; a gate of each element is a part of the matrix of queries."""
    return [*gqa.biases, *(["gate"] if "q" in gqa.biases and gqa.gate == "elements" else [])]


def _gate(h: int, part: Gqa | Mla) -> Specs:
    widths = {"elements": part.width, "heads": part.heads}
    return {"gate": Spec((h, widths[part.gate]), COLUMN)} if part.gate else {}


def _mla(h: int, mla: Mla) -> Specs:
    """Return weights named as published ones, but ``kv_b`` as its two halves: of keys, and of values."""
    latent, r, q = mla.kv_lora_rank, mla.q_lora_rank or 0, mla.heads * (mla.qk_nope + mla.qk_rope)
    queries: Specs = {"q": Spec((h, q), COLUMN)}
    if r:
        queries = {"q_a": Spec((h, r), WHOLE), "q_a_norm": norm(r), "q_b": Spec((r, q), COLUMN)}
    if indexer := mla.indexer:  # the key's norm has a weight and a bias
        queries["index.q"] = Spec((r, indexer.heads * indexer.head_size), WHOLE)
        queries["index.k"], queries["index.k_norm"] = Spec((h, indexer.head_size), WHOLE), norm(2 * indexer.head_size)
        queries["index.weights"] = Spec((h, indexer.heads), WHOLE)
    return (
        queries
        | _gate(h, mla)
        | {
            "kv_a": Spec((h, mla.views * mla.latent), WHOLE),
            "kv_a_norm": norm(latent),
            "k_b": Spec((latent, mla.heads * mla.qk_nope), COLUMN),
            "v_b": Spec((latent, mla.heads * mla.v_head), COLUMN),
            "o": Spec((mla.heads * mla.v_head, h), ROW),
        }
    )


def _sparse(h: int, attention: Gqa | Mla, block: int) -> Specs:
    """Return three gates for each head, and the MLPs that compress `block` tokens of keys and values, or of latents."""
    specs = {"gate": Spec((h, 3 * attention.heads), COLUMN)}
    parts, width = (("k.", "v."), attention.head_size) if isinstance(attention, Gqa) else (("",), attention.kv_elements)
    for name in parts:
        for matrix, inputs in (("in", block * width), ("out", width), ("position", block)):
            specs[f"compress.{name}{matrix}"] = Spec((inputs, width), WHOLE)
    return specs


def _recurrent(h: int, part: Recurrent) -> Specs:
    """Return projections, decays, norms, taps of the convolution, and the output projection."""
    kind, width, heads, (key_heads, key) = part.kind, part.width, part.heads, part.key
    rank, is_by_element = part.rank or 0, part.decays == "elements"

    def column(outputs: int, inputs: int = 0, kv_heads: int = 0) -> Spec:
        return Spec((inputs or h, outputs), COLUMN, kv_heads=kv_heads)

    def through(name: str, outputs: int) -> Specs:
        low = {f"{name}.a": Spec((h, rank), WHOLE), f"{name}.b": column(outputs, rank)}
        return low if rank else {name: column(outputs)}

    specs = {"q": column(key_heads * key, 0, key_heads), "k": column(key_heads * key, 0, key_heads), "v": column(width)}
    if kind == "linear":
        specs |= {"gate": column(width), "norm": norm(width, TENSOR)}
    elif kind == "delta":
        specs |= {"rates": column(heads * (2 - is_by_element))} | (
            through("forget", heads * key) if is_by_element else {}
        )
        decay = norm(heads * (1 + key if is_by_element else 2), TENSOR)
        specs |= through("gate", width) | {"decay": decay, "norm": norm(part.head_size)}
    elif kind == "mamba2":
        of_all = {"norm": norm(width, TENSOR)} if part.norms else {}
        specs |= {"rates": column(heads), "gate": column(width), "decay": norm(3 * heads, TENSOR), **of_all}
    elif kind == "mamba":
        made = {"rates_in": Spec((width, rank + 2 * key), ROW)} | (
            {"rates_norm": norm(rank + 2 * key)} if part.norms else {}
        )
        made |= {"rates_out": column(width, rank), "decay": norm(width * (1 + key), TENSOR)}
        specs = {"v": specs["v"], "gate": column(width), **made}
    for name in part.rule.convolved:
        outputs = specs[name].shape[-1] * (part.seen_taps + ("conv" in part.biases))
        specs[f"conv.{name}"] = Spec((outputs,), (TENSOR,), kv_heads=specs[name].kv_heads)
    of = {"in": ("q", "k", "v", "gate", "rates"), "out": ("o",)}
    biased = [name for end in part.biases for name in of.get(end, ())]
    return biases(specs | {"o": Spec((width, h), ROW)}, ["rates_out", *biased])
