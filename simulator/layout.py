"""Layouts: the spread of a tensor over ranks, and which collectives turn one layout into another.

Ranks stand in a *mesh*: a matrix of devices with a name for each axis, the last axis the fastest. A layout maps each
dimension of a tensor to the axes that cut it (none, one or several, the first the coarsest), as in MindSpore's
``Layout(device_matrix, alias_name)(tensor_map)``. Ranks that differ only along other axes hold the same slice. Along a
*partial* axis each rank holds a partial sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import prod
from typing import NamedTuple

import numpy as np

from simulator.errors import ConfigError
from simulator.graph import CollectiveKind
from simulator.units import nearest, would_divide

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Mesh:
    """Ranks as a matrix.

    Attributes
    ----------
    axis_names
        Name of each axis; ranks that are neighbours along the last axis have consecutive numbers.
    """

    device_matrix: tuple[int, ...]
    axis_names: Axes

    @cached_property
    def ranks(self) -> int:
        """Number of ranks."""
        return prod(self.device_matrix)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Axis -> how many ranks stand along it."""
        return dict(zip(self.axis_names, self.device_matrix, strict=True))

    def size(self, axes: Sequence[str]) -> int:
        """Count the ranks that differ along these axes only."""
        return prod(map(self.sizes.__getitem__, axes))

    def real(self, axes: Sequence[str]) -> Axes:
        """Return those of the axes along which there is more than one rank."""
        several = list[str]()
        for axis in axes:
            if axis not in self.sizes:
                must = f"a layout names axes of the mesh ({', '.join(self.axis_names)})"
                raise ConfigError("layout", must, repr(axis), nearest(axis, self.axis_names))
            if self.sizes[axis] > 1:
                several.append(axis)
        return tuple(several)

    def positions(self, axes: Sequence[str]) -> list[int]:
        """Return the position of each rank along these axes taken as one, the first the coarsest."""
        along = dict(zip(self.axis_names, np.unravel_index(np.arange(self.ranks), self.device_matrix), strict=True))
        positions = np.zeros(self.ranks, np.int64)
        for axis in axes:
            positions = positions * self.sizes[axis] + along[axis]
        return positions.tolist()

    def members(self, axes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Partition the ranks into those that differ along these axes only, each part in the order of the axes."""
        others = [axis for axis in self.axis_names if axis not in axes]
        in_order = [self.axis_names.index(axis) for axis in (*others, *axes)]
        grid = np.arange(self.ranks).reshape(self.device_matrix).transpose(in_order)
        return tuple(map(tuple, grid.reshape(-1, self.size(axes)).tolist()))

    def shifted(self, axis: str, by: int) -> tuple[tuple[int, int], ...]:
        """Pair each rank with the rank that is `by` further along an axis, where there is one."""
        lines = [(ranks, range(max(0, -by), len(ranks) - max(0, by))) for ranks in self.members([axis])]
        return tuple(sorted((ranks[i], ranks[i + by]) for ranks, positions in lines for i in positions))


class LayoutChange(NamedTuple):
    """One step from a layout to another.

    Attributes
    ----------
    kind
        The collective; None if each rank just keeps a slice of its part.
    axes
        The ranks that meet differ along these axes only.
    """

    kind: CollectiveKind | None
    axes: Axes
    layout: Layout


@dataclass(frozen=True)
class Layout:
    """Spread of a tensor over a mesh; axes of one rank are left out, so that equal layouts compare equal.

    Attributes
    ----------
    tensor_map
        For each dimension the axes that cut it, the coarsest first.
    partial
        Axes along which each rank holds a partial sum.
    cut
        All axes that cut some dimension.
    divisors
        For each dimension, into how many slices it is cut.
    parts
        Number of different slices of the tensor.

    Raises
    ------
    ConfigError
        If an axis is not known, or used twice.
    """

    mesh: Mesh = field(repr=False)
    tensor_map: tuple[Axes, ...]
    partial: Axes = ()

    cut: Axes = field(init=False, repr=False, compare=False)
    divisors: tuple[int, ...] = field(init=False, repr=False, compare=False)
    parts: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tensor_map, partial = tuple(map(self.mesh.real, self.tensor_map)), self.mesh.real(self.partial)
        cut, divisors = tuple(chain(*tensor_map)), tuple(map(self.mesh.size, tensor_map))
        self.__dict__.update(tensor_map=tensor_map, partial=partial)  # it is frozen for others
        self.__dict__.update(cut=cut, divisors=divisors, parts=prod(divisors))
        used = [*cut, *partial]
        if len(set(used)) < len(used):
            twice = next(axis for axis in used if used.count(axis) > 1)
            raise ConfigError("layout", "an axis cuts one dimension of a tensor", f"{twice!r} twice", "name it once")

    @cached_property
    def whole(self) -> Layout:
        """The same layout, summed up."""
        return Layout(self.mesh, self.tensor_map) if self.partial else self

    def local_shape(self, shape: Sequence[int], where: str = "layout", name: str = "") -> tuple[int, ...]:
        """Return the shape of a rank's part of a tensor.

        Parameters
        ----------
        shape
            Shape of the whole tensor.
        where, name
            Place and name of the tensor in messages.

        Raises
        ------
        ConfigError
            If a dimension does not divide; the message says over how many ranks it would.
        """
        if self.parts == 1 and len(shape) == len(self.divisors):
            return tuple(shape)
        local = list[int]()
        for dimension, (length, parts) in enumerate(zip(shape, self.divisors, strict=True)):
            if length % parts:
                axes = " x ".join(self.tensor_map[dimension])
                must, found = f"dimension {dimension} of the tensor divides over {axes}", f"{length} over {parts}"
                raise ConfigError(f"{where}, {name}" if name else where, must, found, would_divide(axes, length, parts))
            local.append(length // parts)
        return tuple(local)

    def changes(self, target: Layout) -> list[LayoutChange]:
        """Find the steps to another layout of the same tensor: least bytes first, gathering last.

        Parameters
        ----------
        target
            Layout on the same mesh; it may only be partial where this one is.

        Raises
        ------
        ConfigError
            If the target is partial where this layout is not.
        """
        if not set(target.partial) <= set(self.partial):
            must = "a new layout has no partial sums"
            raise ConfigError("layout", must, f"partial along {', '.join(target.partial)}", "leave partial out")
        changes: list[LayoutChange] = []
        layout, done_before = self, ""
        while layout != target:
            kind, axes, cuts, summed = _next_change(layout, target)
            tensor_map = tuple(cuts.get(dimension, before) for dimension, before in enumerate(layout.tensor_map))
            grown = [len(after) - len(before) for before, after in zip(layout.tensor_map, tensor_map, strict=True)]
            layout = Layout(self.mesh, tensor_map, tuple(axis for axis in layout.partial if axis not in summed))
            done = f"{kind} {grown}" if kind is CollectiveKind.ALL_TO_ALL else f"{kind}"
            if changes and done == done_before:
                together = {*changes.pop().axes, *axes}
                axes = tuple(axis for axis in self.mesh.axis_names if axis in together)
            changes.append(LayoutChange(kind, axes, layout))
            done_before = done
        return changes


class Weight(NamedTuple):
    """A weight on its ranks.

    Attributes
    ----------
    name
        Name of its tensor, such as ``L03/attn.q.weight``.
    shape, layout
        Shape of the whole weight, and how it is cut over the mesh.
    parameters, size_bytes
        Number of its parameters on a rank (before ZeRO shards them), and their size as stored [B].
    replicas
        Axes along which ranks hold the same slice of it, and add up its gradient.
    copies
        How many neighbouring tensor ranks hold the same slice, as there are fewer KV heads than ranks; `shape` has all
        copies.
    """

    name: str
    shape: tuple[int, ...]
    layout: Layout
    kind: str
    parameters: int
    size_bytes: int
    replicas: Axes
    is_trained: bool = True
    copies: int = 1

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape without copies."""
        return *self.shape[:-1], self.shape[-1] // self.copies


def _next_change(layout: Layout, target: Layout) -> tuple[CollectiveKind | None, Axes, dict[int, Axes], Axes]:
    """Find the next step: what makes the tensor smaller, then what keeps its size, then what makes it larger.

    Returns
    -------
    tuple
        The collective and its axes; the axes that cut some dimensions afterwards; and those that are summed up.
    """
    held = layout.tensor_map
    for dimension, (axes, wanted) in enumerate(zip(held, target.tensor_map, strict=True)):
        if wanted[: len(axes)] != axes or len(wanted) == len(axes):
            continue  # this dimension cannot be cut further now
        axis, cut_more = wanted[len(axes)], {dimension: wanted[: len(axes) + 1]}
        if axis in layout.partial:
            return CollectiveKind.REDUCE_SCATTER, (axis,), cut_more, (axis,)
        if axis not in layout.cut:
            return None, (axis,), cut_more, ()
        source = next(d for d, axes in enumerate(held) if axis in axes)
        if held[source][-1] == axis:
            return CollectiveKind.ALL_TO_ALL, (axis,), {source: held[source][:-1]} | cut_more, ()
    summed = tuple(axis for axis in layout.partial if axis not in (*target.partial, *target.cut))
    if summed:
        return CollectiveKind.ALL_REDUCE, summed, {}, summed
    dimension = next(d for d, axes in enumerate(held) if axes != target.tensor_map[d][: len(axes)])
    return CollectiveKind.ALL_GATHER, held[dimension][-1:], {dimension: held[dimension][:-1]}, ()


def runs(held: list[int], layers: int) -> Iterator[dict[str, int]]:
    """Split layers into ranges (start, every, stop), as few as a greedy search finds.

    Parameters
    ----------
    held
        The layers, in order.
    layers
        How many the model has.
    """
    while held:
        left, every, run = {*held}, held[1] - held[0] if len(held) > 1 else 1, held[:1]
        while run[-1] + every in left:
            run.append(run[-1] + every)
        fields = {key: value for key, value, usual in (("start", run[0], 0), ("every", every, 1)) if value != usual}
        yield fields | ({"stop": run[-1] + 1} if run[-1] + every < layers else {})
        held = sorted(left - {*run})
