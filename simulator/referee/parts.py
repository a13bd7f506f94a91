"""Cuts what happens on one rank into parts: steps in issue order, as soon as all of them have ended.

Rows come in the order in which things happen. Spans and waits of steps behind the cut wait for their part.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.columns import turns
from simulator.plan import DETACH, SYNC
from simulator.referee.facts import Part
from simulator.referee.op_columns import Program
from simulator.trace import ISSUED, RESIDENCIES, SPANS, WAITS, Block, Table, pick

LEAST_STEPS = 1 << 10
"""So many steps are a part, unless others are said: about what the engine hands on at once, so that a referee beside it
is never long at work while the engine waits. Larger parts would take up to a third less processor time."""

TABLES = {"issued": ISSUED, "spans": SPANS, "waits": WAITS, "residencies": RESIDENCIES}
"""What a part is made of."""


class Parts:
    """The parts of a run of one rank.

    Parameters
    ----------
    program
        What it runs.
    """

    def __init__(self, program: Program) -> None:
        self._program, self._wanted = program, 0
        self._first, self._is_noted = 0, program.planned_steps is None
        self._tables = {name: Table((*columns, "row")) for name, columns in TABLES.items()}
        self._frees = np.zeros(len(program.sizes) * program.tiers, np.int64)

    def take(self, happened: Mapping[str, Block]) -> None:
        """Take what happened since the last time, by table, with the numbers of the rows."""
        for name, table in self._tables.items():
            table.add(happened[name])
        rows = happened["residencies"]
        freed = pick(rows, (rows["tensor"] >= 0) & (rows["delta_bytes"] < 0))
        np.add.at(self._frees, freed["tensor"] * self._program.tiers + freed["tier"], 1)
        self._is_noted = self._is_noted or len(self._tables["issued"]) > 0

    def ended(self, least_steps: int) -> Part | None:
        """Give the part that has ended with what was taken last, if one has that has at least so many steps."""
        if len(self._tables["spans"]) < max(self._wanted, least_steps):
            return None
        codes = self._codes(int(self._tables["spans"].whole()["issue"].max()) + 1)
        count = self._count_ended(codes)
        part = self._cut(pick(codes, np.arange(count)), complete=True, is_last=False) if count >= least_steps else None
        self._wanted = 2 * len(self._tables["spans"])
        return part

    def rest(self, *, complete: bool) -> Part:
        """Give all that is left, as the last part."""
        return self._cut(self._codes(self._program.planned_steps or 0), complete=complete, is_last=True)

    def _codes(self, last: int) -> Block:
        """The codes of the steps that wait, if they were noted; else of a fixed plan those up to an issue number."""
        if not self._is_noted:
            return self._program.planned(self._first, min(last, self._program.planned_steps or 0))
        return self._tables["issued"].whole()

    def _count_ended(self, codes: Block) -> int:
        """How many steps have ended, and all before them; a detach has when its place was freed as often."""
        has_ended = codes["kind"] == SYNC
        at = self._tables["spans"].whole()["issue"] - self._first
        has_ended[at[(at >= 0) & (at < len(has_ended))]] = True
        detaches = np.flatnonzero(codes["kind"] == DETACH)
        place = codes["a"][detaches] * self._program.tiers + codes["b"][detaches]
        is_empty = self._program.sizes[codes["a"][detaches]] == 0
        has_ended[detaches] = (turns(place) < self._frees[place]) | is_empty
        return int(np.argmin(np.append(has_ended, False)))

    def _cut(self, issued: Block, *, complete: bool, is_last: bool) -> Part:
        """Take out these steps with their rows, and what happened to places."""
        count, waiting = len(issued["kind"]), self._tables
        last = np.iinfo(np.int64).max if is_last else self._first + count
        spans, waits = (waiting[name].pull(waiting[name].whole()["issue"] < last) for name in ("spans", "waits"))
        residencies = waiting["residencies"].pull(np.ones(len(waiting["residencies"]), bool))
        waiting["issued"].pull(np.arange(len(waiting["issued"])) < count)
        gone = issued["kind"] == DETACH
        place = issued["a"][gone] * self._program.tiers + issued["b"][gone]
        np.subtract.at(self._frees, place[self._program.sizes[issued["a"][gone]] > 0], 1)
        self._first += count
        return Part(issued, spans, waits, residencies, complete=complete, is_last=is_last)
