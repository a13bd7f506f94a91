"""The trace: what happened, as facts only, in columns. Nothing in it is computed from something else in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

CAUSES = ("capacity", "transfer", "host", "compaction", "peer", "order", "collective")
"""Root causes of a wait; a trace refers to them by position.

``peer``: another rank has not come to the collective yet. ``collective``: all have, and it is under way.
"""

SPANS = ("rank", "kind", "item", "track", "channel", "issue", "issued_ns", "start_ns", "end_ns")
"""A compute (``kind`` COMPUTE; ``item`` op, ``track`` stream) or a transfer (COPY; tensor, link, channel)."""

WAITS = ("rank", "stream", "op", "issue", "start_ns", "end_ns", "cause", "tensor", "on", "blocker")
"""A stretch in which a compute stream waited to run ``op``.

``cause``: position in `CAUSES`. ``tensor``: what the op lacked, or -1. ``on``: the link (transfer), the tier
(capacity) or the rank (peer) it waited for, or -1. ``blocker``: the tensor whose transfer was under way, the op of
this rank that is the collective under way, or -1.
"""

RESIDENCIES = ("time_ns", "rank", "tier", "tensor", "delta_bytes")
"""Places taken (positive) and freed (negative) in the order in which it happened, the homes at time 0 first.

``tensor`` is ``-1 - op`` for the workspace of an op.
"""

RATES = ("time_ns", "bus", "instance", "bytes_per_s")
"""What goes over an instance of a bus that ranks share from a time on, after each change, in the order of time.

``instance``: the node, or 0 for the supernode. The last row of an instant holds.
"""

ADDRESSES = ("time_ns", "rank", "tier", "tensor", "offset_bytes", "delta_bytes")
"""Ranges of an address space that are taken (positive) and freed (negative), in the order in which it happened.

``tensor`` as in `RESIDENCIES`. What a compaction moves is freed where it was and taken where it is then.
"""

RESERVED = ("time_ns", "rank", "tier", "reserved_bytes", "largest_hole_bytes")
"""What an allocator keeps for itself from a time on, used or not, and the largest piece of it, and of what is left
beside it, that it could give out; `NO_HOLES` where each place has had its range since before the run."""

NO_HOLES = -1
"""In place of the largest hole: none is looked for."""

COMPACTIONS = ("rank", "tier", "asked_ns", "start_ns", "end_ns", "pages", "is_remap")
"""When something that fits found no hole, when nothing ran any more, and when there was a hole.

``is_remap``: 1 if all holes were made one, and so many ``pages`` counted; 0 if giving back what was cached was enough.
"""

TABLES = {
    "spans": SPANS,
    "waits": WAITS,
    "residencies": RESIDENCIES,
    "rates": RATES,
    "addresses": ADDRESSES,
    "reserved": RESERVED,
    "compactions": COMPACTIONS,
}
"""The tables of a trace by name, each of all ranks together."""

ISSUED = ("kind", "a", "b", "c")
"""What a host issued, in order: the codes of a plan's steps."""

Block = dict[str, NDArray[np.int64]]
"""Some rows of a table: column name -> values."""

Happened = Mapping[str, Block]
"""What happened on one rank since it was told last: name of a table of its trace -> rows; ``issued`` is one of them."""


def pick(block: Block, rows: NDArray[Any]) -> Block:
    """Some rows of a block: those that are flagged, or at these positions."""
    return {name: values[rows] for name, values in block.items()}


def tuples(block: Block, *names: str) -> Iterator[tuple[int, ...]]:
    """Rows of a block by these columns, as plain numbers."""
    return zip(*(block[name].tolist() for name in names), strict=True)


def instances(scope: str, on_node: int, stands_in: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """By rank, the instance of something with this scope, and how many ranks there the rows of the rank count for.

    Ranks are folded only where every instance that is left out is like one that is there.

    Parameters
    ----------
    scope
        ``device``, ``node`` or ``supernode``.
    on_node
        Ranks of a node.
    stands_in
        For each rank the one whose rows are its own, too.
    """
    ranks, shown = np.arange(len(stands_in)), np.array(stands_in, np.int64)
    instance = ranks // {"device": 1, "node": on_node, "supernode": len(ranks)}[scope]
    return instance, np.bincount(shown[instance == instance[shown]], minlength=len(ranks))


def packer(columns: tuple[str, ...]) -> Callable[..., bytes]:
    """Make a function that packs the values of a row into bytes, so that no number stays an object.

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
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self._blocks: list[NDArray[np.int64]] = []

    def append(self, rows: bytes) -> None:
        """Add rows that were packed one after another (see `packer`)."""
        if rows:
            self._blocks.append(np.frombuffer(rows, np.int64).reshape(-1, len(self.columns)))

    def add(self, block: Block) -> None:
        """Add some rows."""
        if len(block[self.columns[0]]):
            self._blocks.append(np.stack([block[name] for name in self.columns], axis=1))

    def drain(self) -> Block:
        """Take all rows out."""
        rows = self.whole()
        self._blocks = []
        return rows

    def pull(self, chosen: NDArray[np.bool_]) -> Block:
        """Take the flagged rows out."""
        rows = self._joined()
        self._blocks = [rows[~chosen]] if not chosen.all() else []
        return {name: rows[chosen, i] for i, name in enumerate(self.columns)}

    def whole(self) -> Block:
        """All rows as one block."""
        joined = self._joined()
        joined.flags.writeable = False
        self._blocks = [joined] if len(joined) else []
        return {name: joined[:, i] for i, name in enumerate(self.columns)}

    def _joined(self) -> NDArray[np.int64]:
        return np.concatenate(self._blocks) if self._blocks else np.empty((0, len(self.columns)), np.int64)

    def by_rank(self, ranks: int) -> list[Table]:
        """Split the rows by rank, in their order; in its own table every rank is number 0."""
        at, joined = self.columns.index("rank"), self._joined()
        rows = joined[np.argsort(joined[:, at], kind="stable")]
        ends = np.searchsorted(rows[:, at], np.arange(1, ranks))
        rows[:, at] = 0
        tables = []
        for mine in np.split(rows, ends):
            tables.append(Table(self.columns))
            tables[-1]._blocks += [mine] * bool(len(mine))
        return tables

    def __len__(self) -> int:
        return sum(len(block) for block in self._blocks)


@dataclass(frozen=True, slots=True)
class Trace:
    """What happened in one run.

    Attributes
    ----------
    status
        ``ok``, or ``blocked`` if the plan could not move on.
    spans, waits, residencies
        Tables with the columns `SPANS`, `WAITS` and `RESIDENCIES`.
    issued
        For each rank a table with the columns `ISSUED`: what its host issued, step by step; nothing of a plan that is
        repeated for each training step.
    blocked
        If blocked: who waits for what, one sentence a line, as a cycle where there is one; of several ranks first what
        they lack themselves, then for which others they wait.
    stands_in
        For each rank, the one whose rows are its own, too: itself unless ranks were folded.
    stored_once
        Rows ``(rank, tier, tensor, bytes)``: of what lies at home in a tier that ranks share, and is stored there once
        for several of them, so many bytes of the rank's residencies are those of another rank, too [B].
    laps
        For each rank, how many actions its plan has, if it is repeated for each training step; else 0.
    until_ns
        If ranks did not begin together: until when all of them were at work, so that a step counts [ns].
    rates
        A table with the columns `RATES`, of all ranks together.
    addresses, reserved, compactions
        Tables with the columns `ADDRESSES`, `RESERVED` and `COMPACTIONS`, where places have addresses.
    """

    status: str
    spans: Table
    waits: Table
    residencies: Table
    issued: tuple[Table, ...]
    blocked: tuple[str, ...] = ()
    stands_in: tuple[int, ...] = (0,)
    until_ns: int | None = None
    stored_once: tuple[tuple[int, int, int, int], ...] = ()
    laps: tuple[int, ...] = (0,)
    rates: Table = field(default_factory=lambda: Table(RATES))
    addresses: Table = field(default_factory=lambda: Table(ADDRESSES))
    reserved: Table = field(default_factory=lambda: Table(RESERVED))
    compactions: Table = field(default_factory=lambda: Table(COMPACTIONS))

    def repeated_bytes(self, rows: Block) -> NDArray[np.int64]:
        """Count, for each row of residencies, bytes that another rank's rows count, too (see `stored_once`) [B].

        Parameters
        ----------
        rows
            Rows of the residencies.
        """
        known = {(rank, tier, tensor): size for rank, tier, tensor, size in self.stored_once}
        repeated = np.zeros(len(rows["tier"]), np.int64)
        rows_at = np.flatnonzero(np.isin(rows["tensor"], [tensor for _, _, tensor in known]))
        keys = zip(*(rows[name][rows_at].tolist() for name in ("rank", "tier", "tensor")), strict=True)
        repeated[rows_at] = [known.get(key, 0) for key in keys]
        return repeated

    def by_rank(self) -> tuple[Trace, ...]:
        """What happened on each rank: as many traces of one rank, which is number 0 there.

        A rank that was folded has the very trace of the one that stands in for it.
        """
        ranks = len(self.issued)
        if ranks == 1:
            return (self,)
        names = ("spans", "waits", "residencies", "addresses", "reserved", "compactions")
        tables = [getattr(self, name).by_rank(ranks) for name in names]
        lone = replace(self, stands_in=(0,), stored_once=())
        alone = [
            replace(lone, issued=(issued,), laps=(lap,), **dict(zip(names, mine, strict=True)))
            for issued, lap, *mine in zip(self.issued, self.laps, *tables, strict=True)
        ]
        return tuple([alone[rank] for rank in self.stands_in])
