"""Cuts what happens on one rank into parts: steps in issue order, as soon as all of them have ended.

Rows come in the order in which things happen. What belongs to a step that is behind the cut waits for its part.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, SYNC
from simulator.referee.columns import NONE, Bools, Ints
from simulator.referee.facts import Part
from simulator.referee.op_columns import Columns, Program
from simulator.trace import ISSUED, RESIDENCIES, SPANS, WAITS, Block

LEAST_STEPS = 1 << 16
"""So many steps are a part, unless others are said: enough that what is done once for a part does not count."""


class _Waiting:
    """Rows of a table that are in no part yet, with their numbers."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns, self._blocks, self._next = columns, list[Ints](), 0
        self._rows = np.empty((0, len(columns)), np.int64)
        self._numbers = np.empty(0, np.int64)
        self.count = 0

    def append(self, block: Block) -> None:
        rows = np.stack([block[name] for name in self._columns], axis=1)
        self._blocks.append(rows)
        self.count += len(rows)

    def rows(self) -> Block:
        """All that wait."""
        if self._blocks:
            self._rows = np.concatenate((self._rows, *self._blocks))
            last = self._next + sum(map(len, self._blocks))
            self._numbers = np.append(self._numbers, np.arange(self._next, last))
            self._next = last
            self._blocks.clear()
        return {name: self._rows[:, i] for i, name in enumerate(self._columns)}

    def pull(self, chosen: Bools | None = None) -> tuple[Block, Ints]:
        """Take rows out, with their numbers; all if none are chosen."""
        chosen = np.ones(len(self.rows()[self._columns[0]]), bool) if chosen is None else chosen
        found, numbers = self._rows[chosen], self._numbers[chosen]
        self._rows, self._numbers = self._rows[~chosen], self._numbers[~chosen]
        self.count = len(self._rows)
        return {name: found[:, i] for i, name in enumerate(self._columns)}, numbers


class Parts:
    """The parts of a run of one rank.

    Parameters
    ----------
    program
        What it runs.
    least_steps
        How many steps a part has, at least; the last one has what is left.
    """

    def __init__(self, program: Program, least_steps: int = LEAST_STEPS) -> None:
        self._program, self._least = program, least_steps
        self._tiers = len(program.plan.tiers)
        self._here = program.plan.tiers.index(program.hardware.compute_tier)
        self._workspace = np.array([op.workspace_bytes for op in program.graph.ops], np.int64)
        self._first, self._is_noted = 0, program.planned_steps is None
        self._wanted = least_steps
        names = {"issued": ISSUED, "spans": SPANS, "waits": WAITS, "residencies": RESIDENCIES}
        self._tables = {name: _Waiting(columns) for name, columns in names.items()}
        home = np.array(program.plan.home, np.int64)
        self._homes = int(np.count_nonzero((home != NOWHERE) & (program.sizes > 0)))

    def take(self, happened: Mapping[str, Block]) -> Part | None:
        """Take what happened since the last time, by table, and give the part that has ended with it, if one has."""
        for name, waiting in self._tables.items():
            waiting.append(happened[name])
        self._is_noted = self._is_noted or self._tables["issued"].count > 0
        if self._tables["spans"].count < self._wanted:
            return None
        count = self._ended()
        found = self._cut(count) if count >= self._least else None
        self._wanted = max(self._least, 2 * self._tables["spans"].count)
        return found

    def rest(self, *, complete: bool) -> Part:
        """Give all that is left, as the last part."""
        issued = self._codes(self._program.planned_steps or 0)
        spans, waits, residencies = (self._tables[name].pull() for name in ("spans", "waits", "residencies"))
        return Part(issued, spans, waits, residencies, complete=complete, is_last=True)

    def _codes(self, last: int) -> Columns:
        """The codes of the steps that wait, if they were noted; else of a fixed plan those up to an issue number."""
        if not self._is_noted:
            return self._program.planned(self._first, min(last, self._program.planned_steps or 0))
        rows = self._tables["issued"].rows()
        return rows["kind"], rows["a"], rows["b"], rows["c"]

    def _ended(self) -> int:
        """How many steps have ended, and all before them."""
        spans = self._tables["spans"].rows()
        codes = self._codes(int(spans["issue"].max(initial=NONE)) + 1)
        kind, a, b, _ = codes
        has_ended = kind == SYNC
        at = spans["issue"] - self._first
        has_ended[at[(at >= 0) & (at < len(kind))]] = True
        detaches = np.flatnonzero(kind == DETACH)
        rows = self._tables["residencies"].rows()
        freed = (rows["tensor"] >= 0) & (rows["delta_bytes"] < 0)
        places = len(self._program.sizes) * self._tiers
        acted = np.bincount(rows["tensor"][freed] * self._tiers + rows["tier"][freed], minlength=places)
        place = a[detaches] * self._tiers + b[detaches]
        has_ended[detaches] = (_turns(place) < acted[place]) | (self._program.sizes[a[detaches]] == 0)
        return int(np.argmin(np.append(has_ended, False)))

    def _cut(self, count: int) -> Part:
        """Take out so many steps with their rows."""
        last = self._first + count
        codes = self._codes(last)
        issued: Columns = (codes[0][:count], codes[1][:count], codes[2][:count], codes[3][:count])
        if self._is_noted:
            self._tables["issued"].pull(np.arange(len(codes[0])) < count)
        spans = self._tables["spans"].pull(self._tables["spans"].rows()["issue"] < last)
        waits = self._tables["waits"].pull(self._tables["waits"].rows()["issue"] < last)
        residencies = self._tables["residencies"].rows()
        mine = self._of_places(issued, residencies) | self._of_workspaces(spans[0], residencies)
        if not self._first:
            mine[: self._homes] = True
        self._first = last
        return Part(issued, spans, waits, self._tables["residencies"].pull(mine), complete=True, is_last=False)

    def _of_places(self, issued: Columns, rows: Block) -> Bools:
        """Which rows are of places that steps of the part take and free, in turn; each detach frees once."""
        kind, a, b, c = issued
        places = len(self._program.sizes) * self._tiers
        computes, copies, detaches = (np.flatnonzero(kind == one) for one in (COMPUTE, COPY, DETACH))
        who, which = self._program.uses.expand(a[computes])
        writes = self._program.uses.writes[which]
        last_made, last_gone = np.full(places, NONE, np.int64), np.full(places, NONE, np.int64)
        written = self._program.uses.tensor[which][writes] * self._tiers + self._here
        np.maximum.at(last_made, written, computes[who[writes]])
        np.maximum.at(last_made, a[copies] * self._tiers + c[copies], copies)
        gone = a[detaches] * self._tiers + b[detaches]
        np.maximum.at(last_gone, gone, detaches)
        frees = np.bincount(gone, minlength=places)
        found = np.zeros(len(rows["tensor"]), bool)
        at = np.flatnonzero(rows["tensor"] >= 0)
        place, is_free = rows["tensor"][at] * self._tiers + rows["tier"][at], rows["delta_bytes"][at] < 0
        order = np.argsort(place, kind="stable")
        at, place, is_free = at[order], place[order], is_free[order]
        new = np.append(True, place[1:] != place[:-1])[: len(place)]
        freed: Ints = np.cumsum(is_free) - is_free
        before = freed - np.maximum.accumulate(np.where(new, freed, 0)) if len(place) else freed
        stays = last_made > last_gone
        found[at] = (before < frees[place]) | ((before == frees[place]) & ~is_free & stays[place])
        return found

    def _of_workspaces(self, spans: Block, rows: Block) -> Bools:
        """Which rows are of the workspaces of the part's computes."""
        ran = spans["kind"] == COMPUTE
        ran &= self._workspace[spans["item"] * ran] > 0
        found = np.zeros(len(rows["tensor"]), bool)
        for sign, end in ((1, "start_ns"), (-1, "end_ns")):
            at = np.flatnonzero((rows["tensor"] < 0) & (rows["delta_bytes"] * sign > 0))
            op, time = -1 - rows["tensor"][at], rows["time_ns"][at]
            keys = np.stack((np.append(op, spans["item"][ran]), np.append(time, spans[end][ran])))
            number = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
            mine, wanted = number[: len(at)], np.bincount(number[len(at) :], minlength=len(number) + 1)
            found[at] = _turns(mine) < wanted[mine]
        return found


def _turns(group: Ints) -> Ints:
    """The position of each row among those of its group."""
    order = np.argsort(group, kind="stable")
    ordered, at = group[order], np.arange(len(group))
    new = np.append(True, ordered[1:] != ordered[:-1])[: len(group)]
    found = np.empty(len(group), np.int64)
    found[order] = at - np.maximum.accumulate(np.where(new, at, 0)) if len(at) else at
    return found
