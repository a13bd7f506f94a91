"""Layouts: how a tensor is spread over ranks, and which collectives turn one layout into another.

Ranks stand in a *mesh*: a matrix of devices with a name for each axis, the last axis the fastest. A layout maps each
dimension of a tensor to the axes that cut it (none, one or several, the first the coarsest), as in MindSpore's
``Layout(device_matrix, alias_name)(tensor_map)``. Ranks that differ only along other axes hold the same slice. Along a
*partial* axis each rank holds a summand of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import NamedTuple, Self

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
    device_matrix
        Size of each axis.
    axis_names
        Its name; ranks that are neighbours along the last axis have consecutive numbers.
    """

    device_matrix: tuple[int, ...]
    axis_names: Axes

    @cached_property
    def ranks(self) -> int:
        """How many there are."""
        return prod(self.device_matrix)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return dict(zip(self.axis_names, self.device_matrix, strict=True))

    def size(self, axes: Sequence[str]) -> int:
        """How many ranks differ along these axes only."""
        return prod(self._sizes[axis] for axis in axes)

    def real(self, axes: Sequence[str]) -> Axes:
        """Those of the axes along which there is more than one rank."""
        for axis in axes:
            if axis not in self._sizes:
                must = f"a layout names axes of the mesh ({', '.join(self.axis_names)})"
                raise ConfigError("layout", must, repr(axis), nearest(axis, self.axis_names))
        return tuple(axis for axis in axes if self._sizes[axis] > 1)

    def position(self, rank: int, axes: Sequence[str]) -> int:
        """Where a rank stands along these axes taken as one, the first the coarsest."""
        found, places = 0, dict(zip(self.axis_names, np.unravel_index(rank, self.device_matrix), strict=True))
        for axis in axes:
            found = found * self._sizes[axis] + int(places[axis])
        return found

    def members(self, axes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Partition the ranks into those that differ along these axes only, each part in the order of the axes."""
        others = [axis for axis in self.axis_names if axis not in axes]
        in_order = [self.axis_names.index(axis) for axis in (*others, *axes)]
        grid = np.arange(self.ranks).reshape(self.device_matrix).transpose(in_order)
        return tuple(map(tuple, grid.reshape(-1, self.size(axes)).tolist()))

    def shifted(self, axis: str, by: int) -> tuple[tuple[int, int], ...]:
        """Pairs of each rank and the one that is `by` further along an axis, where there is one."""
        rows = [(ranks, range(max(0, -by), len(ranks) - max(0, by))) for ranks in self.members([axis])]
        return tuple(sorted((ranks[place], ranks[place + by]) for ranks, places in rows for place in places))


class LayoutChange(NamedTuple):
    """One step from a layout to another.

    Attributes
    ----------
    kind
        The collective, or None for what each rank does alone: to keep a slice of what it holds.
    axes
        The ranks that meet differ along these axes only.
    layout
        What the tensor has afterwards.
    """

    kind: CollectiveKind | None
    axes: Axes
    layout: Layout


@dataclass(frozen=True)
class Layout:
    """How a tensor is spread over a mesh; axes of one rank are left out, so that equal layouts compare equal.

    Attributes
    ----------
    mesh
        The ranks.
    tensor_map
        For each dimension the axes that cut it, the coarsest first.
    partial
        Axes along which each rank holds a summand.

    Raises
    ------
    ConfigError
        If an axis is not known, or used twice.
    """

    mesh: Mesh = field(repr=False)
    tensor_map: tuple[Axes, ...]
    partial: Axes = ()

    def __post_init__(self) -> None:
        kept = tuple(self.mesh.real(axes) for axes in self.tensor_map)
        object.__setattr__(self, "tensor_map", kept)
        object.__setattr__(self, "partial", self.mesh.real(self.partial))
        used = [*self.cut, *self.partial]
        if len(set(used)) < len(used):
            twice = next(axis for axis in used if used.count(axis) > 1)
            raise ConfigError("layout", "an axis cuts one dimension of a tensor", f"{twice!r} twice", "name it once")

    @property
    def cut(self) -> Axes:
        """All axes that cut some dimension."""
        return tuple(axis for axes in self.tensor_map for axis in axes)

    @property
    def whole(self) -> Self:
        """The same, summed up."""
        return replace(self, partial=()) if self.partial else self

    @property
    def parts(self) -> int:
        """How many different slices there are."""
        return self.mesh.size(self.cut)

    def local_shape(self, shape: Sequence[int], where: str = "layout") -> tuple[int, ...]:
        """Shape of what a rank holds of a tensor.

        Parameters
        ----------
        shape
            Of the whole tensor.
        where
            What a message calls it.

        Raises
        ------
        ConfigError
            If a dimension does not divide; the message says over how many ranks it would.
        """
        found = []
        for number, (length, axes) in enumerate(zip(shape, self.tensor_map, strict=True)):
            parts = self.mesh.size(axes)
            if length % parts:
                must = f"dimension {number} of the tensor divides over {' x '.join(axes)}"
                raise ConfigError(where, must, f"{length} over {parts}", would_divide(" x ".join(axes), length, parts))
            found.append(length // parts)
        return tuple(found)

    def local_elements(self, shape: Sequence[int], where: str = "layout") -> int:
        """How many elements of a tensor a rank holds."""
        return prod(self.local_shape(shape, where))

    def changes(self, target: Layout) -> list[LayoutChange]:
        """Find the steps to another layout of the same tensor: least bytes first, gathering last.

        Parameters
        ----------
        target
            On the same mesh. What is partial there must be partial here.

        Raises
        ------
        ConfigError
            If the target is partial where this layout is not.
        """
        if not set(target.partial) <= set(self.partial):
            must = "what a layout becomes is summed up"
            raise ConfigError("layout", must, f"partial along {', '.join(target.partial)}", "leave partial out")
        found: list[LayoutChange] = []
        at, before = self, ""
        while at != target:
            change = _next(at, target)
            grown = [len(b) - len(a) for a, b in zip(at.tensor_map, change.layout.tensor_map, strict=True)]
            alike = f"{change.kind} {grown}" if change.kind is CollectiveKind.ALL_TO_ALL else f"{change.kind}"
            at = change.layout
            if found and alike == before:
                axes = {*found.pop().axes, *change.axes}
                change = change._replace(axes=tuple(axis for axis in at.mesh.axis_names if axis in axes))
            found.append(change)
            before = alike
        return found

    def moved(self, dimension: int, axes: Axes) -> Layout:
        """The same with other axes on one dimension."""
        changed = (*self.tensor_map[:dimension], axes, *self.tensor_map[dimension + 1 :])
        return replace(self, tensor_map=changed)


class Weight(NamedTuple):
    """A weight on its ranks.

    Attributes
    ----------
    name
        Of its tensor, such as ``L03/attn.q.weight``.
    shape, layout
        Of the whole weight, and how it is cut over the mesh.
    kind
        Its kind of tensor.
    parameters
        How many a rank has of it (before ZeRO shards them).
    replicas
        Axes along which ranks hold the same of it, and add up its gradient.
    is_trained
        Whether it has a gradient in training.
    """

    name: str
    shape: tuple[int, ...]
    layout: Layout
    kind: str
    parameters: int
    replicas: Axes
    is_trained: bool = True


def _next(at: Layout, target: Layout) -> LayoutChange:
    """The next step: what makes the tensor smaller, then what keeps its size, then what makes it larger."""
    for dimension, axis in _wanted(at, target):
        if axis in at.partial:
            less = replace(at, partial=tuple(a for a in at.partial if a != axis))
            return LayoutChange(CollectiveKind.REDUCE_SCATTER, (axis,), _cut_more(less, dimension, axis))
        if axis not in at.cut:
            return LayoutChange(None, (axis,), _cut_more(at, dimension, axis))
        source = next(d for d, axes in enumerate(at.tensor_map) if axis in axes)
        if at.tensor_map[source][-1] == axis:
            less = at.moved(source, at.tensor_map[source][:-1])
            return LayoutChange(CollectiveKind.ALL_TO_ALL, (axis,), _cut_more(less, dimension, axis))
    summed = tuple(axis for axis in at.partial if axis not in (*target.partial, *target.cut))
    if summed:
        less = replace(at, partial=tuple(axis for axis in at.partial if axis not in summed))
        return LayoutChange(CollectiveKind.ALL_REDUCE, summed, less)
    dimension = next(d for d, axes in enumerate(at.tensor_map) if axes != target.tensor_map[d][: len(axes)])
    axes = at.tensor_map[dimension]
    return LayoutChange(CollectiveKind.ALL_GATHER, axes[-1:], at.moved(dimension, axes[:-1]))


def _wanted(at: Layout, target: Layout) -> Iterator[tuple[int, str]]:
    """Dimensions that may be cut further now, and along which axis."""
    for dimension, (axes, wanted) in enumerate(zip(at.tensor_map, target.tensor_map, strict=True)):
        if len(axes) < len(wanted) and wanted[: len(axes)] == axes:
            yield dimension, wanted[len(axes)]


def _cut_more(layout: Layout, dimension: int, axis: str) -> Layout:
    return layout.moved(dimension, (*layout.tensor_map[dimension], axis))
