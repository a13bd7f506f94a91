"""Cuts what happens on one rank into parts: steps in issue order, as soon as all of them have ended.

Rows come in the order in which things happen. What belongs to a step that is behind the cut waits for its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator.columns import NONE, Bools, Ints, running, turns
from simulator.plan import COMPUTE, COPY, DETACH, SYNC
from simulator.referee.facts import Part
from simulator.referee.op_columns import Program
from simulator.trace import ISSUED, RESIDENCIES, SPANS, WAITS, Block, Table, Trace, pick

LEAST_STEPS = 1 << 16
"""So many steps are a part, unless others are said: enough that what is done once for a part does not count."""


def whole(program: Program, trace: Trace, tables: Sequence[Block], rank: int) -> Part:
    """All that happened on a rank, as one part.

    Parameters
    ----------
    program, trace
        What it ran, and what happened.
    tables
        Its spans, waits and residencies, with their numbers (see `numbered`).
    rank
        Which.
    """
    rows, planned = trace.issued[rank].whole(), program.planned_steps
    issued = rows if planned is None or len(rows["kind"]) else program.planned(0, planned)
    spans, waits, residencies = tables
    return Part(issued, spans, waits, residencies, complete=trace.status == "ok", is_last=True)


def numbered(table: Table, ranks: int) -> list[Block]:
    """By rank the rows of a table, and as a column ``row`` their numbers there."""
    rows = table.whole()
    order = np.argsort(rows["rank"], kind="stable")
    ends = np.searchsorted(rows["rank"][order], np.arange(ranks + 1))
    return [pick({**rows, "row": np.arange(len(order))}, mine) for mine in np.split(order, ends)[1:-1]]


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
        self._program, self._least, self._wanted = program, least_steps, least_steps
        self._first, self._is_noted = 0, program.planned_steps is None
        names = {"issued": ISSUED, "spans": SPANS, "waits": WAITS, "residencies": RESIDENCIES}
        self._tables = {name: Table((*columns, "row")) for name, columns in names.items()}
        self._taken = dict.fromkeys(names, 0)

    def take(self, happened: Mapping[str, Block]) -> Part | None:
        """Take what happened since the last time, by table, and give the part that has ended with it, if one has."""
        for name, table in self._tables.items():
            first, rows = self._taken[name], happened[name]
            self._taken[name] += len(next(iter(rows.values())))
            table.add({**rows, "row": np.arange(first, self._taken[name])})
        self._is_noted = self._is_noted or self._taken["issued"] > 0
        if len(self._tables["spans"]) < self._wanted:
            return None
        count = self._ended()
        found = self._cut(count) if count >= self._least else None
        self._wanted = max(self._least, 2 * len(self._tables["spans"]))
        return found

    def rest(self, *, complete: bool) -> Part:
        """Give all that is left, as the last part."""
        issued = self._codes(self._program.planned_steps or 0)
        spans, waits, residencies = (self._tables[name].whole() for name in ("spans", "waits", "residencies"))
        return Part(issued, spans, waits, residencies, complete=complete, is_last=True)

    def _codes(self, last: int) -> Block:
        """The codes of the steps that wait, if they were noted; else of a fixed plan those up to an issue number."""
        if not self._is_noted:
            return self._program.planned(self._first, min(last, self._program.planned_steps or 0))
        return self._tables["issued"].whole()

    def _place(self, tensor: Ints, tier: Ints | int) -> Ints:
        return tensor * self._program.tiers + tier

    def _per_place(self, place: Ints) -> Ints:
        """How often each place is among these."""
        return np.bincount(place, minlength=len(self._program.sizes) * self._program.tiers)

    def _ended(self) -> int:
        """How many steps have ended, and all before them."""
        issue, rows = self._tables["spans"].whole()["issue"], self._tables["residencies"].whole()
        codes = self._codes(int(issue.max(initial=NONE)) + 1)
        kind, a, b = codes["kind"], codes["a"], codes["b"]
        has_ended = kind == SYNC
        at = issue - self._first
        has_ended[at[(at >= 0) & (at < len(kind))]] = True
        detaches = np.flatnonzero(kind == DETACH)
        freed = pick(rows, (rows["tensor"] >= 0) & (rows["delta_bytes"] < 0))
        place = self._place(a[detaches], b[detaches])
        acted = self._per_place(self._place(freed["tensor"], freed["tier"]))
        has_ended[detaches] = (turns(place) < acted[place]) | (self._program.sizes[a[detaches]] == 0)
        return int(np.argmin(np.append(has_ended, False)))

    def _cut(self, count: int) -> Part:
        """Take out so many steps with their rows."""
        last = self._first + count
        issued = pick(self._codes(last), np.arange(count))
        if self._is_noted:
            self._tables["issued"].pull(np.arange(len(self._tables["issued"])) < count)
        spans, waits = (
            self._tables[name].pull(self._tables[name].whole()["issue"] < last) for name in ("spans", "waits")
        )
        residencies = self._tables["residencies"].whole()
        mine = self._of_places(issued, residencies) | self._of_workspaces(spans, residencies)
        if not self._first:
            mine[: len(self._program.homes)] = True
        self._first = last
        return Part(issued, spans, waits, self._tables["residencies"].pull(mine), complete=True, is_last=False)

    def _of_places(self, issued: Block, rows: Block) -> Bools:
        """Which rows are of places that steps of the part take and free, in turn; each detach frees once."""
        kind, a, b, c = (issued[name] for name in ISSUED)
        uses = self._program.uses
        computes, copies, detaches = (np.flatnonzero(kind == one) for one in (COMPUTE, COPY, DETACH))
        who, which = uses.expand(a[computes])
        who, which = who[uses.writes[which]], which[uses.writes[which]]
        gone = self._place(a[detaches], b[detaches])
        frees = self._per_place(gone)
        last_made, last_gone = np.full((2, len(frees)), NONE)
        np.maximum.at(last_made, self._place(uses.tensor[which], self._program.compute_tier), computes[who])
        np.maximum.at(last_made, self._place(a[copies], c[copies]), copies)
        np.maximum.at(last_gone, gone, detaches)
        found = np.zeros(len(rows["tensor"]), bool)
        at = np.flatnonzero(rows["tensor"] >= 0)
        place, is_free = self._place(rows["tensor"], rows["tier"])[at], rows["delta_bytes"][at] < 0
        before = running(place, is_free.astype(np.int64)) - is_free
        stays = last_made > last_gone
        found[at] = (before < frees[place]) | ((before == frees[place]) & ~is_free & stays[place])
        return found

    def _of_workspaces(self, spans: Block, rows: Block) -> Bools:
        """Which rows are of the workspaces of the part's computes."""
        ran = spans["kind"] == COMPUTE
        ran &= self._program.workspace[spans["item"] * ran] > 0
        found = np.zeros(len(rows["tensor"]), bool)
        for sign, end in ((1, "start_ns"), (-1, "end_ns")):
            at = np.flatnonzero((rows["tensor"] < 0) & (rows["delta_bytes"] * sign > 0))
            op, time = -1 - rows["tensor"][at], rows["time_ns"][at]
            keys = np.stack((np.append(op, spans["item"][ran]), np.append(time, spans[end][ran])))
            number = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
            mine, wanted = number[: len(at)], np.bincount(number[len(at) :], minlength=len(number) + 1)
            found[at] = turns(mine) < wanted[mine]
        return found
