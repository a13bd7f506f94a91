"""The weights of a decoder: their shapes, and how they are cut unless the workload says otherwise.

A linear's weight has inputs and outputs. Cut along its outputs (column), every rank makes a part of what it puts out;
cut along its inputs (row), a summand. Megatron alternates the two, so that each pair of linears sums up once; it cuts
the tables along the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from simulator.errors import ConfigError
from simulator.layout import Axes, Layout, Mesh, Weight
from simulator.units import counted, nearest
from simulator.workload import DecoderModel, Dtypes, Experts, Gqa, Mla, Parallel

TENSOR = ("tensor",)
EXPERT = ("expert",)
BATCH = ("data", "expert")
"""Axes that cut the samples: expert ranks are replicas as well."""

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


def specs(model: DecoderModel, names: list[str]) -> Iterator[tuple[str, Specs]]:
    """The weights of the parts of a model, in the order of their use: ``embed``, the layers, ``head``."""
    h, v = model.hidden, model.vocabulary
    yield "embed", {"tokens": Spec((v, h), _ROW)}
    norm = Spec((h,), ((),))
    for number, block in enumerate(names):
        attention, feed_forward = _attention(model), _feed_forward(model, number)
        yield block, {"norm1": norm, **attention, "norm2": norm, **feed_forward}
    yield "head", {"norm": norm} | ({} if model.tied_embeddings else {"lm": Spec((h, v), _COLUMN)})


def _attention(model: DecoderModel) -> Specs:
    part = model.attention
    found = _gqa(model.hidden, part) if isinstance(part, Gqa) else _mla(model.hidden, part)
    if part.sparse is not None:
        found |= _sparse(model.hidden, part, part.sparse.compress.block)
    return {f"attn.{name}": spec for name, spec in found.items()}


def _gqa(h: int, part: Gqa) -> Specs:
    q, kv = part.heads * part.head_size, part.kv_heads * part.head_size
    found = {"q": Spec((h, q), _COLUMN), "k": Spec((h, kv), _COLUMN), "v": Spec((h, kv), _COLUMN)}
    if part.qk_norms:
        found |= {name: Spec((part.head_size,), ((),)) for name in ("q_norm", "k_norm")}
    return found | {"o": Spec((q, h), _ROW)}


def _mla(h: int, part: Mla) -> Specs:
    """Names as in the published weights, but ``kv_b`` as its two halves: of keys, and of values."""
    latent, q = part.kv_lora_rank, part.heads * (part.qk_nope + part.qk_rope)
    found = {"q": Spec((h, q), _COLUMN)}
    if part.q_lora_rank:
        r = part.q_lora_rank
        found = {"q_a": Spec((h, r), _WHOLE), "q_a_norm": Spec((r,), ((),)), "q_b": Spec((r, q), _COLUMN)}
    return found | {
        "kv_a": Spec((h, latent + part.qk_rope), _WHOLE),
        "kv_a_norm": Spec((latent,), ((),)),
        "k_b": Spec((latent, part.heads * part.qk_nope), _COLUMN),
        "v_b": Spec((latent, part.heads * part.v_head), _COLUMN),
        "o": Spec((part.heads * part.v_head, h), _ROW),
    }


def _sparse(h: int, part: Gqa | Mla, block: int) -> Specs:
    """Three gates for each head, and what compresses so many tokens: of a head's key and value, or of latents."""
    found = {"gate": Spec((h, 3 * part.heads), _COLUMN)}
    parts, width = (("k.", "v."), part.head_size) if isinstance(part, Gqa) else (("",), part.kv_elements)
    for name in parts:
        found[f"compress.{name}in"] = Spec((block * width, width), _WHOLE)
        found[f"compress.{name}out"] = Spec((width, width), _WHOLE)
        found[f"compress.{name}position"] = Spec((block, width), _WHOLE)
    return found


def _feed_forward(model: DecoderModel, layer: int) -> Specs:
    h, part = model.hidden, model.feed_forward
    if not isinstance(part, Experts):
        return _gated("ffn", h, part.width)
    if layer < part.dense_layers:
        return _gated("ffn", h, part.dense_width or 0)
    found = {"ffn.router": Spec((h, part.routed), _WHOLE)}
    if part.router_bias:
        found["ffn.router_bias"] = Spec((part.routed,), ((),))
    for name, (shape, tensor_map, _) in _gated("ffn", h, part.width).items():
        found[name] = Spec((part.held, *shape), (EXPERT, *tensor_map), "expert")
    return found | (_gated("ffn.shared", h, part.shared * part.width) if part.shared else {})


def _gated(name: str, h: int, f: int) -> Specs:
    wide, narrow = Spec((h, f), _COLUMN), Spec((f, h), _ROW)
    return {f"{name}.gate": wide, f"{name}.up": wide, f"{name}.down": narrow}


def size_bytes(weight: Weight, dtypes: Dtypes) -> int:
    """Size of what a rank holds of a weight [B]; matrices of layers but for routers are kept as ``dtypes.weights``."""
    is_matrix = len(weight.shape) > 1 and not weight.name.startswith(("embed/", "head/"))
    if dtypes.weights is None or not is_matrix or weight.name.endswith("/ffn.router.weight"):
        return weight.parameters * dtypes.element_bytes
    return dtypes.matrix_bytes(weight.shape)


def weights(model: DecoderModel, names: list[str], mesh: Mesh, parallel: Parallel, where: str) -> dict[str, Weight]:
    """Lay the weights of a model over the ranks.

    Parameters
    ----------
    model
        The dimensions.
    names
        Of the layers.
    mesh
        The ranks.
    parallel
        With layouts that replace the usual ones.
    where
        What messages call the workload.

    Raises
    ------
    ConfigError
        If a layout fits no weight, names what cannot cut one, or does not divide.
    """
    found: dict[str, Weight] = {}
    unused = list(parallel.layouts)
    for block, part in specs(model, names):
        for module, spec in part.items():
            name, tensor_map = f"{block}/{module}.weight", spec.tensor_map
            for pattern, cut in parallel.layouts.items():
                if fnmatchcase(name, pattern):
                    tensor_map = _tensor_map(cut, spec, f"{where}, parallel.layouts.{pattern}, {name}")
                    unused = [other for other in unused if other != pattern]
            layout = Layout(mesh, tensor_map)
            replicas = mesh.real([axis for axis in BATCH if axis not in layout.cut])
            parameters = layout.local_elements(spec.shape, f"{where}, {name}")
            found[name] = Weight(name, spec.shape, layout, spec.kind, parameters, replicas)
    if unused:
        must, do = "a layout is for weights that the model has", nearest(unused[0], tuple(found)[:12])
        raise ConfigError(f"{where}, parallel.layouts", must, repr(unused[0]), do)
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
