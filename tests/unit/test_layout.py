"""Layouts against arrays: every rank really holds its slice, and every change really leads to the other layout."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.graph import CollectiveKind
from simulator.layout import Layout, Mesh
from simulator.units import would_divide

MESH = Mesh((2, 3, 2), ("pipeline", "data", "tensor"))


def test_ranks_are_neighbours_along_the_last_axis() -> None:
    assert MESH.members(["tensor"]) == ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11))
    assert MESH.members(["data"]) == ((0, 2, 4), (1, 3, 5), (6, 8, 10), (7, 9, 11))
    assert MESH.members(["pipeline", "tensor"])[0] == (0, 1, 6, 7)
    assert MESH.shifted("pipeline", 1) == tuple((rank, rank + 6) for rank in range(6))
    assert MESH.shifted("data", -1) == ((2, 0), (3, 1), (4, 2), (5, 3), (8, 6), (9, 7), (10, 8), (11, 9))


def slice_of(layout: Layout, rank: int, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """For each dimension of a tensor, where the slice of a rank begins and ends."""
    sizes = zip(layout.local_shape(shape), layout.tensor_map, strict=True)
    starts = ((layout.mesh.positions(axes)[rank] * length, length) for length, axes in sizes)
    return tuple((start, start + length) for start, length in starts)


def test_what_a_rank_holds() -> None:
    layout = Layout(MESH, (("data", "tensor"), ()))
    assert layout.local_shape((12, 5)) == (2, 5)
    assert slice_of(layout, 3, (12, 5)) == ((6, 8), (0, 5))
    assert layout.parts == 6


def test_axes_of_one_rank_are_left_out() -> None:
    mesh = Mesh((1, 2), ("data", "tensor"))
    assert Layout(mesh, (("data",), ("tensor",)), ("data",)[:0]) == Layout(mesh, ((), ("tensor",)))


def test_what_does_not_divide_is_told_what_would() -> None:
    with pytest.raises(
        ConfigError, match=r"w, L00/attn\.k\.weight: dimension 1 of the tensor divides over data"
    ) as caught:
        Layout(MESH, ((), ("data",))).local_shape((4, 1024), "w, L00/attn.k.weight")
    assert "found 1024 over 3; set data to 2 or 4" in str(caught.value)
    assert would_divide("tensor", 7, 9) == "set tensor to 7"
    assert would_divide("tensor", 7, 3) == "set tensor to 1 or 7"


def test_an_axis_cuts_once_and_is_known() -> None:
    with pytest.raises(ConfigError, match="'data' twice"):
        Layout(MESH, (("data",), ("data",)))
    with pytest.raises(ConfigError, match=r"names axes of the mesh .*, found 'tensr'; .*did you mean 'tensor'"):
        Layout(MESH, (("tensr",), ()))
    with pytest.raises(ConfigError, match="a new layout has no partial sums, found partial along data"):
        Layout(MESH, ((), ())).changes(Layout(MESH, ((), ()), ("data",)))


def kinds(source: Layout, target: Layout) -> list[tuple[str, tuple[str, ...]]]:
    return [(str(change.kind or "slice"), change.axes) for change in source.changes(target)]


def test_the_usual_changes() -> None:
    whole, rows, columns = (Layout(MESH, m) for m in (((), ()), (("tensor",), ()), ((), ("tensor",))))
    partial_sums = Layout(MESH, ((), ()), ("tensor",))
    assert kinds(partial_sums, whole) == [("all_reduce", ("tensor",))]
    assert kinds(partial_sums, rows) == [("reduce_scatter", ("tensor",))]
    assert kinds(rows, whole) == [("all_gather", ("tensor",))]
    assert kinds(rows, columns) == [("all_to_all", ("tensor",))]
    assert kinds(whole, rows) == [("slice", ("tensor",))]
    assert kinds(rows, rows) == []
    both = Layout(MESH, (("data", "tensor"), ()))
    assert kinds(both, whole) == [("all_gather", ("data", "tensor"))]
    assert kinds(both, columns) == [("all_to_all", ("tensor",)), ("all_gather", ("data",))]
    turned = Layout(MESH, ((), ("tensor", "data")))
    assert kinds(both, turned) == [("all_to_all", ("data", "tensor"))], "one exchange of all, not one after another"
    apart = (Layout(MESH, maps) for maps in ((("data",), ("tensor",), ()), ((), ("data",), ("tensor",))))
    assert kinds(*apart) == [("all_to_all", ("tensor",)), ("all_to_all", ("data",))], "between other dimensions"
    assert kinds(Layout(MESH, ((), ()), ("data", "tensor")), both) == [("reduce_scatter", ("data", "tensor"))]


AXES = ("a", "b", "c")


@st.composite
def layouts(draw: st.DrawFn, mesh: Mesh, *, partial: bool) -> Layout:
    """Each axis cuts a dimension, is partial, or neither; several on one dimension in any order."""
    maps: list[list[str]] = [[], []]
    partial_sums = []
    for axis in draw(st.permutations(AXES)):
        place = draw(st.sampled_from([0, 1, None, "partial"] if partial else [0, 1, None]))
        if place == "partial":
            partial_sums.append(axis)
        elif place is not None:
            maps[place].append(axis)
    return Layout(mesh, tuple(map(tuple, maps)), tuple(partial_sums))


def scattered(layout: Layout, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[np.ndarray, list[np.ndarray]]:
    """A whole tensor, and what each rank holds of it: its slice, of its partial sum."""
    whole = rng.integers(0, 1000, shape)
    ranks = layout.mesh.ranks
    partial_sums = {0: whole}
    for position in range(1, layout.mesh.size(layout.partial)):
        partial_sums[position] = rng.integers(0, 1000, shape)
        partial_sums[0] = partial_sums[0] - partial_sums[position]
    held = []
    for rank in range(ranks):
        partial_sum = partial_sums[layout.mesh.positions(layout.partial)[rank]]
        held.append(partial_sum[tuple(slice(*ends) for ends in slice_of(layout, rank, shape))])
    return whole, held


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_change_is_possible_for_those_who_meet(data: st.DataObject) -> None:
    """After each step a rank holds what the layout says, made only from what those who meet held before."""
    mesh = Mesh(tuple(data.draw(st.integers(1, 3)) for _ in AXES), AXES)
    source = data.draw(layouts(mesh, partial=True))
    target = data.draw(layouts(mesh, partial=False))
    shape = (prod(mesh.device_matrix), prod(mesh.device_matrix))
    whole, held = scattered(source, shape, np.random.default_rng(data.draw(st.integers(0, 99))))
    at = source
    for change in source.changes(target):
        assert change.axes == mesh.real(change.axes)
        members = mesh.members(change.axes) if change.kind else tuple((rank,) for rank in range(mesh.ranks))
        held = after(at, change.layout, shape, members, held)
        reduces = change.kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
        assert (set(at.partial) - set(change.layout.partial) == set(change.axes)) == reduces
        before, now = (prod(layout.local_shape(shape)) for layout in (at, change.layout))
        factor = mesh.size(change.axes)
        grown = {"all_gather": factor, "all_reduce": 1, "all_to_all": 1}.get(str(change.kind), 1 / factor)
        assert now == before * grown
        at = change.layout
    assert at == target
    for rank in range(mesh.ranks):
        mine = whole[tuple(slice(*ends) for ends in slice_of(target, rank, shape))]
        assert (held[rank] == mine).all()


def after(
    old: Layout, new: Layout, shape: tuple[int, ...], members: tuple[tuple[int, ...], ...], held: list[np.ndarray]
) -> list[np.ndarray]:
    """What each rank holds after those who meet exchanged what they held: cells that none of them had are missing."""
    found: list[np.ndarray] = list(held)
    summed = [axis for axis in old.partial if axis not in new.partial]
    for ranks in members:
        for rank in ranks:
            total, seen = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
            done = set()
            for other in ranks:
                ends = slice_of(old, other, shape)
                key = (ends, old.mesh.positions(summed)[other])
                if key not in done:
                    done.add(key)
                    cells = tuple(slice(*e) for e in ends)
                    total[cells] += held[other]
                    seen[cells] += 1
            mine = tuple(slice(*e) for e in slice_of(new, rank, shape))
            assert (seen[mine] == old.mesh.size(summed)).all(), "not all partial sums were among those who met"
            found[rank] = total[mine]
    return found
