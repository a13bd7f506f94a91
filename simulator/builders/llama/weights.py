"""The weights of a LLaMA-like decoder: their shapes, and how they are cut unless the workload says otherwise.

A linear's weight has inputs and outputs. Cut along its outputs (column), every rank makes a part of what it puts out;
cut along its inputs (row), a summand. Megatron alternates the two, so that each pair of linears sums up once; it cuts
the tables along the vocabulary.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

from simulator.errors import ConfigError
from simulator.layout import Axes, Layout, Mesh, Weight
from simulator.units import nearest
from simulator.workload import LlamaModel, Parallel

TENSOR = ("tensor",)
EXPERT = ("expert",)
BATCH = ("data", "expert")
"""Axes that cut the samples: expert ranks are replicas as well."""

_COLUMN: tuple[Axes, ...] = ((), TENSOR)
_ROW: tuple[Axes, ...] = (TENSOR, ())


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


def specs(model: LlamaModel) -> dict[str, dict[str, Spec]]:
    """The weights of the parts of a model, in the order of their use: ``embed``, ``layer``, ``head``."""
    h, f, v = model.hidden, model.ffn, model.vocabulary
    kv = h * model.kv_heads // model.heads
    attention = {"q": Spec((h, h), _COLUMN), "k": Spec((h, kv), _COLUMN), "v": Spec((h, kv), _COLUMN)}
    layer = {"norm1": Spec((h,), ((),))}
    layer |= {f"attn.{name}": spec for name, spec in attention.items()}
    layer |= {"attn.o": Spec((h, h), _ROW), "norm2": Spec((h,), ((),))}
    wide = {"ffn.gate": Spec((h, f), _COLUMN), "ffn.up": Spec((h, f), _COLUMN), "ffn.down": Spec((f, h), _ROW)}
    if model.experts:
        layer["ffn.router"] = Spec((h, model.experts), ((), ()))
        for name, (shape, tensor_map, _) in wide.items():
            wide[name] = Spec((model.experts, *shape), (EXPERT, *tensor_map), "expert")
    layer |= wide
    head = {"norm": Spec((h,), ((),))}
    if not model.tied_embeddings:
        head["lm"] = Spec((h, v), _COLUMN)
    return {"embed": {"tokens": Spec((v, h), _ROW)}, "layer": layer, "head": head}


def weights(model: LlamaModel, blocks: list[str], mesh: Mesh, parallel: Parallel, where: str) -> dict[str, Weight]:
    """Lay the weights of a model over the ranks.

    Parameters
    ----------
    model
        The dimensions.
    blocks
        Names of the layers.
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
    parts = specs(model)
    named = [("embed", parts["embed"]), *((block, parts["layer"]) for block in blocks), ("head", parts["head"])]
    chosen = {pattern: _tensor_map(pattern, axes, where) for pattern, axes in parallel.layouts.items()}
    used = set()
    for block, part in named:
        for module, spec in part.items():
            name, tensor_map = f"{block}/{module}.weight", spec.tensor_map
            for pattern, cut in chosen.items():
                if fnmatchcase(name, pattern):
                    tensor_map = cut
                    used.add(pattern)
            found[name] = _weight(name, spec, tensor_map, mesh, where)
    for pattern in chosen:
        if pattern not in used:
            must, do = "a layout is for weights that the model has", nearest(pattern, tuple(found)[:12])
            raise ConfigError(f"{where}, parallel.layouts", must, repr(pattern), do)
    return found


def _tensor_map(pattern: str, axes: tuple[str, ...], where: str) -> tuple[Axes, ...]:
    found: list[Axes] = []
    for axis in axes:
        if axis not in ("none", "tensor", "expert"):
            must = "a dimension of a weight is cut by tensor, expert or none (replicas shard weights by zero_stage: 3)"
            raise ConfigError(f"{where}, parallel.layouts.{pattern}", must, str(axis), "write one of these")
        found.append(() if axis == "none" else (axis,))
    return tuple(found)


def _weight(name: str, spec: Spec, tensor_map: tuple[Axes, ...], mesh: Mesh, where: str) -> Weight:
    place = f"{where}, {name}"
    if len(tensor_map) != len(spec.shape):
        must, found = f"a layout has {len(spec.shape)} dimensions here", str(len(tensor_map))
        raise ConfigError(place, must, found, "write one entry for each dimension")
    if [axes == EXPERT for axes in tensor_map] != [axes == EXPERT for axes in spec.tensor_map]:
        must, found = (
            "expert cuts the number of experts, and nothing else",
            ", ".join("".join(a) or "none" for a in tensor_map),
        )
        raise ConfigError(place, must, found, "write expert for the first dimension of an expert, and only there")
    layout = Layout(mesh, tensor_map)
    replicas = mesh.real(tuple(axis for axis in BATCH if axis not in layout.cut))
    return Weight(name, spec.shape, layout, spec.kind, layout.local_elements(spec.shape, place), replicas)
