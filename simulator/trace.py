"""The trace of a run: facts only, in columns. Nothing in it is computed from anything else in it.

A `Recorder` writes one during a run. The functions at the end work on columns of grouped rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NONE = -1
"""No row, no step, no time."""

CAUSES = ("capacity", "transfer", "host", "compaction", "peer", "order", "collective", "host_compute")
"""Root causes of a wait; a trace refers to them by position.

``peer``: another rank has not arrived at the collective yet. ``collective``: all have, and it is under way.
``host_compute``: an op of the host is under way.
"""

SPANS = ("rank", "kind", "item", "track", "channel", "issue", "issued_ns", "start_ns", "end_ns")
"""A compute (``kind`` COMPUTE; ``item`` op, ``track`` stream) or a transfer (COPY; tensor, link, channel)."""

WAITS = ("rank", "stream", "op", "issue", "start_ns", "end_ns", "cause", "tensor", "on", "blocker")
"""A stretch in which a compute stream waited to run ``op``.

``cause``: position in `CAUSES`. ``tensor``: what the op lacked, or -1. ``on``: the link (transfer), the tier
(capacity) or the rank (peer) it waited for, or -1. ``blocker``: the tensor whose transfer was under way, the op of
this rank under way that is the collective, or the host's, or -1.
"""

RESIDENCIES = ("time_ns", "rank", "tier", "tensor", "delta_bytes")
"""Places taken (positive) and freed (negative), in the order in which that happened, the homes at time 0 first.

``tensor`` is ``-1 - op`` for the workspace of an op.
"""

RATES = ("time_ns", "bus", "instance", "bytes_per_s")
"""The rate over an instance of a shared bus from a time on: a row for each change, in the order of time.

``instance``: the node, or 0 for the supernode. Of an instant, the last row holds.
"""

ADDRESSES = ("time_ns", "rank", "tier", "tensor", "offset_bytes", "delta_bytes")
"""Ranges of an address space taken (positive) and freed (negative), in the order in which that happened.

``tensor`` as in `RESIDENCIES`. A compaction frees the old ranges of all that it moves, then takes the new ones.
"""

RESERVED = ("time_ns", "rank", "tier", "reserved_bytes", "largest_hole_bytes")
"""Bytes that an allocator has reserved from a time on, used or not, and the largest hole in them or in the rest of the
tier; `NO_HOLES` where each place got its range before the run."""

NO_HOLES = -1
"""Stands for the size of the largest hole where nothing looks for holes."""

COMPACTIONS = ("rank", "tier", "asked_ns", "start_ns", "end_ns", "pages", "is_remap")
"""Compactions: when something that fits found no hole, when nothing ran any more, and when there was a hole.

``is_remap``: 1 if all holes were merged, at the cost of ``pages``; 0 if it was enough to release what was cached.
"""

LOADS = ("rank", "issue", "op", "link", "size_bytes", "start_ns", "end_ns")
"""Reads in place: what the compute of this issue loads over a link."""

TABLES = {
    "spans": SPANS,
    "waits": WAITS,
    "residencies": RESIDENCIES,
    "rates": RATES,
    "addresses": ADDRESSES,
    "reserved": RESERVED,
    "compactions": COMPACTIONS,
    "loads": LOADS,
}
"""The tables of a trace by name, each of all ranks together."""

ISSUED = ("kind", "a", "b", "c")
"""The codes of the actions that a host issued, in order."""

Block = dict[str, NDArray[np.int64]]
"""Some rows of a table: column name -> values."""


def pick(block: Block, rows: NDArray[Any]) -> Block:
    """Return some rows of a block: the flagged ones, or those at these positions."""
    return {name: values[rows] for name, values in block.items()}


def tuples(block: Block, *names: str) -> Iterator[tuple[int, ...]]:
    """Yield the rows of a block as tuples of plain numbers, one for each of these columns."""
    return zip(*(block[name].tolist() for name in names), strict=True)


def digest(*columns: Any) -> bytes:
    """Return what tells columns of numbers apart from others of the same types."""
    sha = sha256()
    for column in columns:
        sha.update(np.ascontiguousarray(column).data)
    return sha.digest()


def held_bytes(first: ArrayLike, last: ArrayLike, size: ArrayLike, positions: int) -> Ints:
    """Add up, at each of `positions` positions, the sizes of what is held there, from `first` to `last` [B]."""
    change = np.zeros(positions + 1, np.int64)
    np.add.at(change, np.asarray(first, np.int64), size)
    np.subtract.at(change, np.asarray(last, np.int64) + 1, size)
    return np.cumsum(change)[:-1]


def instances(sharing: int, stands_in: Sequence[int]) -> tuple[Ints, Ints]:
    """Return, by rank, its instance of what `sharing` ranks share, and for how many ranks of it the rank's rows count.

    An instance without simulated ranks is like one that has some, or ranks would not have been folded.

    Parameters
    ----------
    sharing
        How many devices share an instance (`Topology.sharing`).
    stands_in
        For each rank the rank that was simulated in its place.
    """
    shown = np.array(stands_in, np.int64)
    instance = np.arange(len(shown)) // sharing
    return instance, np.bincount(shown[instance == instance[shown]], minlength=len(shown))


def packer(columns: tuple[str, ...]) -> Callable[..., bytes]:
    """Make a function that packs the values of a row into bytes, so that no number is kept as an object.

    Parameters
    ----------
    columns
        Column names of the table; the function takes a whole number for each.
    """
    return Struct(f"={len(columns)}q").pack


class Table:
    """Rows of a trace, kept in blocks of columns.

    Parameters
    ----------
    columns
        Column names.
    rows
        Rows that it begins with.
    """

    def __init__(self, columns: tuple[str, ...], *rows: NDArray[np.int64]) -> None:
        self.columns = columns
        self._blocks = [block for block in rows if len(block)]

    def append(self, rows: bytes) -> None:
        """Add rows that were packed one after another (see `packer`)."""
        if rows:
            self._blocks.append(np.frombuffer(rows, np.int64).reshape(-1, len(self.columns)))

    def only(self, flags: NDArray[np.bool_]) -> Table:
        """Make a table of the flagged rows."""
        return Table(self.columns, self._joined()[flags])

    def whole(self) -> Block:
        """Return all rows as one block."""
        rows = self._joined()
        rows.flags.writeable = False
        return {name: rows[:, i] for i, name in enumerate(self.columns)}

    def _joined(self) -> NDArray[np.int64]:
        if len(self._blocks) != 1:
            self._blocks = [np.concatenate((np.empty((0, len(self.columns)), np.int64), *self._blocks))]
        return self._blocks[0]

    def by_rank(self, ranks: int) -> list[Table]:
        """Split the rows by rank, keeping their order; in each of these tables the rank is number 0."""
        column, joined = self.columns.index("rank"), self._joined()
        rows = joined[np.argsort(joined[:, column], kind="stable")]
        ends = np.searchsorted(rows[:, column], np.arange(1, ranks))
        rows[:, column] = 0
        return [Table(self.columns, of_rank) for of_rank in np.split(rows, ends)]

    def __len__(self) -> int:
        return sum(len(block) for block in self._blocks)


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that happened in one run.

    Attributes
    ----------
    status
        ``ok``, or ``blocked`` if the plan could not move on.
    issued
        For each rank a table with the columns `ISSUED`: the actions that its host issued; empty for a plan that is
        repeated for each training step.
    blocked
        If blocked: sentences that say what waits for what; of several ranks first what they lack themselves, then for
        which others they wait.
    stands_in
        For each rank, the rank that was simulated in its place, whose rows count for both; itself unless folded.
    stored_once
        Rows ``(rank, tier, tensor, bytes)`` of tensors that a tier stores once for several ranks: how many bytes of the
        rank's residencies are counted for another rank, too [B].
    laps
        For each rank, the number of actions of its plan, if that is repeated for each training step; else 0.
    until_ns
        If ranks did not begin together: the time until which all of them were at work [ns]; later steps do not count.
    rates
        A table with the columns `RATES`, of all ranks together.
    addresses, reserved, compactions
        Tables with the columns `ADDRESSES`, `RESERVED` and `COMPACTIONS`, where places have addresses.
    loads
        A table with the columns `LOADS`, where ops read in place.
    """

    status: str
    spans: Table = field(default_factory=lambda: Table(SPANS))
    waits: Table = field(default_factory=lambda: Table(WAITS))
    residencies: Table = field(default_factory=lambda: Table(RESIDENCIES))
    issued: tuple[Table, ...] = ()
    blocked: tuple[str, ...] = ()
    stands_in: tuple[int, ...] = (0,)
    until_ns: int | None = None
    stored_once: tuple[tuple[int, int, int, int], ...] = ()
    laps: tuple[int, ...] = (0,)
    rates: Table = field(default_factory=lambda: Table(RATES))
    addresses: Table = field(default_factory=lambda: Table(ADDRESSES))
    reserved: Table = field(default_factory=lambda: Table(RESERVED))
    compactions: Table = field(default_factory=lambda: Table(COMPACTIONS))
    loads: Table = field(default_factory=lambda: Table(LOADS))

    def repeated_bytes(self, rows: Block) -> NDArray[np.int64]:
        """Return, for each row of residencies, how many bytes other rows count, too (see `stored_once`) [B].

        Parameters
        ----------
        rows
            Rows of the residencies.
        """
        sizes = {(rank, tier, tensor): size for rank, tier, tensor, size in self.stored_once}
        repeated = np.zeros(len(rows["tier"]), np.int64)
        rows_at = np.flatnonzero(np.isin(rows["tensor"], [tensor for _, _, tensor in sizes]))
        keys = zip(*(rows[name][rows_at].tolist() for name in ("rank", "tier", "tensor")), strict=True)
        repeated[rows_at] = [sizes.get(key, 0) for key in keys]
        return repeated

    def by_rank(self) -> tuple[Trace, ...]:
        """Split the trace into one for each rank, number 0 in its own; a folded rank has that of its stand-in."""
        ranks = len(self.issued)
        if ranks == 1:
            return (self,)
        names = ("spans", "waits", "residencies", "addresses", "reserved", "compactions", "loads")
        tables = [getattr(self, name).by_rank(ranks) for name in names]
        empty = replace(self, stands_in=(0,), stored_once=())
        alone = [
            replace(empty, issued=(issued,), laps=(lap,), **dict(zip(names, own_tables, strict=True)))
            for issued, lap, *own_tables in zip(self.issued, self.laps, *tables, strict=True)
        ]
        return tuple([alone[rank] for rank in self.stands_in])


span_row, code_row = packer(SPANS), packer(ISSUED)

_BLOCK_ROWS = 1024
"""Small enough that a block is still in the cache when it is closed."""
_NUMBER_BYTES = 8


class Recorder:
    """Collects the rows of the trace; a row is added with one ``+=`` of its bytes (`packer`).

    Parameters
    ----------
    ranks
        Number of ranks that issue actions.

    Attributes
    ----------
    spans, waits, residencies, rates, addresses, reserved, compactions, loads
        Take rows of these tables.
    issued, laps
        By rank, takes the codes that its host issues; the number of actions of a plan repeated for each step.
    """

    def __init__(self, ranks: int) -> None:
        self._trace = Trace("ok", issued=tuple([Table(ISSUED) for _ in range(ranks)]))
        self._tables = [*(getattr(self._trace, name) for name in TABLES), *self._trace.issued]
        self._rows = [bytearray() for _ in self._tables]
        self.spans, self.waits, self.residencies, self.rates, *others = self._rows
        self.addresses, self.reserved, self.compactions, self.loads, *self.issued = others
        self.laps = [0] * ranks

    def flush(self, least_rows: int = _BLOCK_ROWS) -> None:
        """Close a block of each table that has so many rows."""
        for table, rows in zip(self._tables, self._rows, strict=True):
            if len(rows) >= least_rows * len(table.columns) * _NUMBER_BYTES:
                table.append(bytes(rows))
                rows.clear()

    def trace(self, blocked: tuple[str, ...], stands_in: tuple[int, ...]) -> Trace:
        """Close the trace; it is ``ok`` if nothing is blocked."""
        self.flush(1)
        status = "blocked" if blocked else "ok"
        return replace(self._trace, status=status, blocked=blocked, stands_in=stands_in, laps=tuple(self.laps))


# functions of columns: rows with the same key, or keys, form a group


def firsts(*keys: Ints) -> Bools:
    """Flag the first row of each group; groups are contiguous."""
    flags: Bools = np.arange(len(keys[0])) == 0
    for key in keys:
        flags[1:] |= key[1:] != key[:-1]
    return flags


def distinct(values: Ints) -> Ints:
    """Return the distinct values, ascending. `np.unique` of NumPy 2.4 hashes them, which is 40 times as slow."""
    ascending = np.sort(values)
    return ascending[firsts(ascending)]


def lasts(*keys: Ints) -> Bools:
    """Flag the last row of each group; groups are contiguous."""
    return np.append(firsts(*keys)[1:], True)[: len(keys[0])]


def at_first(is_first: Bools, values: Ints) -> Ints:
    """Return, by row, the value of the first row of its group; groups are contiguous."""
    return values[np.maximum.accumulate(np.where(is_first, np.arange(len(values)), 0))]


def running(group: Ints, change: Ints) -> Ints:
    """Return running sums within groups, in the order of the rows."""
    order = np.argsort(group, kind="stable")
    total = np.cumsum(change[order])
    sums = np.empty(len(order), np.int64)
    sums[order] = total - at_first(firsts(group[order]), total - change[order])
    return sums


def ordinals(group: Ints) -> Ints:
    """Return the position of each row among those of its group, from 0."""
    return running(group, np.ones(len(group), np.int64)) - 1


def busy(key: Ints, start: Ints, end: Ints, *, joins: bool) -> tuple[Ints, Ints, Ints]:
    """Find the stretches in which, for a key, something is under way without a pause.

    Parameters
    ----------
    key, start, end
        The key, start and end of each thing.
    joins
        Whether a thing that starts where all others have ended goes on with their stretch.

    Returns
    -------
    (array, array, array)
        The order of the rows by key and time; positions in it at which stretches begin; and their ends.
    """
    order = np.lexsort((end, start, key))
    key, start, end = key[order], start[order], end[order]
    stride = int(end.max(initial=0)) + 2
    reached = np.maximum.accumulate(key * stride + end)
    is_new = np.append(True, (key * stride + start)[1:] + (not joins) > reached[:-1])[: len(key)]
    return order, np.flatnonzero(is_new), (reached - key * stride)[np.append(is_new[1:], True)[: len(key)]]
