"""One rank's trace, laid out so that laws are comparisons of columns.

A step is known by its *issue* number; columns "by issue" have one value for each step that the host issued. Times are
compared by their position in `Facts.clock`, the sorted distinct times of the trace: positions are small, so that a
group and a position fit one 64-bit key. A step that never happened has the position `Facts.never`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.cost import durations_ns
from simulator.errors import InvariantError
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, Plan
from simulator.referee.naming import describe
from simulator.trace import CAUSES, Block, Table, Trace

if TYPE_CHECKING:
    from simulator.referee.late import LateUses

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NONE = -1
"""No row, no step, no time."""


class Uses:
    """What each op of a graph reads and writes, as flat columns.

    Parameters
    ----------
    op
        Op ids, ascending.
    tensor
        The tensor that the op uses, each once.
    reads, writes
        How it uses it.
    """

    def __init__(self, op: Ints, tensor: Ints, reads: Bools, writes: Bools) -> None:
        self.op, self.tensor, self.reads, self.writes = op, tensor, reads, writes

    @classmethod
    def of(cls, graph: Graph) -> Uses:
        """Collect the uses of a graph."""
        n = max(len(graph.tensors), 1)
        read = _keys([op.reads for op in graph.ops], n)
        written = _keys([op.writes for op in graph.ops], n)
        both = _distinct(np.concatenate((read, written)))
        return cls(both // n, both % n, _contains(read, both), _contains(written, both))

    def expand(self, ops: Ints) -> tuple[Ints, Ints]:
        """For each of `ops` find its uses: positions in `ops`, and positions in these columns."""
        first = np.searchsorted(self.op, ops, "left")
        count = np.searchsorted(self.op, ops, "right") - first
        who = np.repeat(np.arange(len(ops)), count)
        return who, np.arange(len(who)) - np.repeat(np.cumsum(count) - count - first, count)


def _keys(tensors: Sequence[tuple[int, ...]], n: int) -> Ints:
    counts = [len(t) for t in tensors]
    flat = np.fromiter(chain.from_iterable(tensors), np.int64, sum(counts))
    return _distinct(np.repeat(np.arange(len(tensors)), counts) * n + flat)


def _distinct(keys: Ints) -> Ints:
    keys = np.sort(keys)
    new = np.ones(len(keys), bool)
    new[1:] = keys[1:] != keys[:-1]
    return keys[new]


def _contains(keys: Ints, wanted: Ints) -> Bools:
    """Whether each wanted key is among the sorted keys."""
    if not len(keys):
        return np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.asarray(keys[at] == wanted)


class Program:
    """What ranks ran, laid out once for all of them.

    Parameters
    ----------
    graph, hardware, plan
        What ran, where, as decided.
    late
        What late reads choose, if that is drawn.

    Attributes
    ----------
    sizes
        Of each tensor [B].
    alone_ns
        Time of each op alone [ns].
    meets
        Of each op, whether it is a collective.
    planned
        Columns of the steps of a fixed plan, all repeats; None for a reactive one.
    """

    def __init__(self, graph: Graph, hardware: Hardware, plan: Plan, late: LateUses | None = None) -> None:
        self.graph, self.hardware, self.plan, self.late = graph, hardware, plan, late
        self.uses = Uses.of(graph) if late is None else late.uses
        self.sizes = np.array([t.size_bytes for t in graph.tensors], np.int64)
        self.alone_ns = np.array(durations_ns(graph, hardware), np.int64)
        self.meets = np.array([op.collective is not None for op in graph.ops], bool)
        steps = plan.fixed
        self.planned: Columns | None = None
        if steps is not None:
            kind, a, b, c = (
                np.tile(np.array(column, np.int64), plan.repeats) for column in (steps.kind, steps.a, steps.b, steps.c)
            )
            self.planned = kind, a, b, c


Columns = tuple[Ints, Ints, Ints, Ints]


class Rows:
    """The rows of a table by rank.

    Parameters
    ----------
    table
        A table of a trace.
    """

    def __init__(self, table: Table) -> None:
        self._whole = table.whole()
        rank = self._whole["rank"]
        self._order = None if not rank.any() else np.argsort(rank, kind="stable")
        self._rank = rank if self._order is None else rank[self._order]

    def of(self, rank: int) -> tuple[Block, Ints]:
        """One rank's rows, and their numbers in the table."""
        if self._order is None and rank == 0:
            return self._whole, np.arange(len(self._rank))
        first, last = np.searchsorted(self._rank, [rank, rank + 1])
        rows = np.arange(first, last) if self._order is None else self._order[first:last]
        return {name: values[rows] for name, values in self._whole.items()}, rows


class RankRows:
    """A trace whose rows can be had rank by rank.

    Parameters
    ----------
    trace
        What happened.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.spans, self.waits, self.residencies = Rows(trace.spans), Rows(trace.waits), Rows(trace.residencies)


class Facts:
    """One rank's rows of a trace, by issue number.

    Parameters
    ----------
    program
        What it ran.
    rows
        What happened, rank by rank.
    rank
        Which rank.

    Attributes
    ----------
    kind, a, b, c
        What was issued: the codes, by issue. A fixed plan that was not recorded counts as issued in full.
    row, issued_ns, start_ns, end_ns
        The span of each step by issue: its row, or `NONE` and times of 0.
    start, end, issued
        Positions of these times in `clock`; `never` if there is no span.
    arrived, arrived_ns
        When a collective had come to its meeting, at the earliest: from then on it waited for peers. For other steps
        the start.
    unmet
        Collectives that never began, each the next on its stream: they may have come, and hold their room.
    spans, residencies
        The rank's rows; ``*_row`` holds their numbers in the trace's table.
    """

    def __init__(self, program: Program, rows: RankRows, rank: int) -> None:
        self.program, self.rank = program, rank
        self.graph, self.hardware, self.plan = program.graph, program.hardware, program.plan
        self.tiers = len(self.plan.tiers)
        self.compute_tier = self.plan.tiers.index(self.hardware.compute_tier)
        self.complete = rows.trace.status == "ok"
        self.sizes, self.uses = program.sizes, program.uses
        self._compute_uses: tuple[Ints, Ints] | None = None
        self.kind, self.a, self.b, self.c = _issued(program, rows.trace, rank)
        self.spans, self.span_row = rows.spans.of(rank)
        self.waits, self.wait_row = rows.waits.of(rank)
        self.residencies, self.residency_row = rows.residencies.of(rank)
        self._check_spans_match_issued()
        self._lay_out()

    def _check_spans_match_issued(self) -> None:
        spans, issue = self.spans, self.spans["issue"]
        in_range = (issue >= 0) & (issue < len(self.kind))
        self.check(in_range, "a span belongs to a step that was issued", "spans", self.span_row, spans, "issue")
        matches = (spans["kind"] == self.kind[issue]) & (spans["item"] == self.a[issue])
        self.check(matches, "a span is of the step that was issued", "spans", self.span_row, spans, "issue", "item")
        once = np.bincount(issue, minlength=1)[issue] == 1
        self.check(once, "a step has one span", "spans", self.span_row, spans, "issue")
        forward = (spans["issued_ns"] <= spans["start_ns"]) & (spans["start_ns"] <= spans["end_ns"])
        must = "a step is issued, then starts, then ends"
        self.check(forward, must, "spans", self.span_row, spans, "issued_ns", "start_ns", "end_ns")

    def _lay_out(self) -> None:
        spans, n = self.spans, len(self.kind)
        self.unmet = self._unmet()
        arrived_ns = np.concatenate((self._arrivals_ns(), self._arrivals_in_vain_ns()))
        named = [spans["issued_ns"], spans["start_ns"], spans["end_ns"], arrived_ns, self.residencies["time_ns"]]
        self.clock, at = np.unique(np.concatenate(named), return_inverse=True)
        self.never = len(self.clock)
        self.stride = self.never + 2
        issue, count = spans["issue"], len(self.span_row)
        self.row = _scatter(n, issue, self.span_row, NONE)
        self.issued_ns, self.start_ns, self.end_ns = (
            _scatter(n, issue, spans[name], 0) for name in ("issued_ns", "start_ns", "end_ns")
        )
        self.issued, self.start, self.end = (
            _scatter(n, issue, at[i * count : (i + 1) * count], self.never) for i in range(3)
        )
        self.arrived, self.arrived_ns = self.start, self.start_ns
        if len(arrived_ns):
            came = np.concatenate((issue, self.unmet))
            self.arrived = _scatter(n, came, at[3 * count : 3 * count + len(came)], self.never)
            self.arrived_ns = _scatter(n, came, arrived_ns, 0)
        self.residency_time = at[3 * count + len(arrived_ns) :]
        self.channel = _scatter(n, issue, spans["channel"], NONE)
        self.track = _scatter(n, issue, spans["track"], NONE)

    def _unmet(self) -> Ints:
        """The first compute of each stream that never began, where it is a collective."""
        if self.complete or not self.program.meets.any():
            return np.empty(0, np.int64)
        left = np.setdiff1d(self.steps(COMPUTE), self.spans["issue"])
        next_ones = left[np.unique(self.b[left], return_index=True)[1]]
        return np.asarray(next_ones[self.program.meets[self.a[next_ones]]])

    def _arrivals_in_vain_ns(self) -> Ints:
        """Of each unmet collective, when the last wait or compute before it on its stream had ended."""
        spans, waits = self.spans, self.waits
        found = np.zeros(len(self.unmet), np.int64)
        for number, issue in enumerate(self.unmet.tolist()):
            mine = (spans["kind"] == COMPUTE) & (spans["track"] == self.b[issue])
            waited = waits["end_ns"][waits["issue"] == issue]
            found[number] = max(spans["end_ns"][mine].max(initial=0), waited.max(initial=0))
        return found

    def _arrivals_ns(self) -> Ints:
        """Of each span, when its wait for peers before its start began; nothing if there are no collectives."""
        if not self.program.meets.any():
            return np.empty(0, np.int64)
        spans, waits, n = self.spans, self.waits, len(self.kind)
        is_peer = waits["cause"] == CAUSES.index("peer")
        latest, first = np.zeros(n, np.int64), _scatter(n, spans["issue"], spans["start_ns"], 0)
        np.maximum.at(latest, waits["issue"][~is_peer], waits["end_ns"][~is_peer])
        np.minimum.at(first, waits["issue"][is_peer], waits["start_ns"][is_peer])
        found = np.maximum(first, latest)
        is_met = (spans["kind"] == COMPUTE) & self.program.meets[spans["item"] * (spans["kind"] == COMPUTE)]
        return np.where(is_met, found[spans["issue"]], spans["start_ns"])

    def steps(self, kind: int) -> Ints:
        """Issue numbers of the steps of a kind, ascending."""
        return np.flatnonzero(self.kind == kind)

    def ran(self, kind: int) -> Ints:
        """Issue numbers of the computes or copies that have a span, ascending."""
        return np.flatnonzero((self.kind == kind) & (self.row != NONE))

    def compute_uses(self) -> tuple[Ints, Ints]:
        """Issue of each use of a tensor by a compute, and its position in `uses`; by issue."""
        if self._compute_uses is None:
            computes, late = self.steps(COMPUTE), self.program.late
            who, which = self.uses.expand(self.a[computes])
            issue = computes[who]
            if late is not None:
                chosen_by, chosen = late.chosen(computes, self.a[computes])
                issue, which = np.concatenate((issue, chosen_by)), np.concatenate((which, chosen))
                order = np.argsort(issue, kind="stable")
                issue, which = issue[order], which[order]
            self._compute_uses = issue, which
        return self._compute_uses

    def alone_ns(self, computes: Ints) -> Ints:
        """Time of each of these computes alone [ns]."""
        found = self.program.alone_ns[self.a[computes]]
        if self.program.late is not None:
            self.program.late.set_times(found, computes, self.a[computes])
        return found

    def running_max(self, group: Ints, value: Ints) -> Ints:
        """The largest value among the earlier rows of the same group, or `NONE`; groups are ascending."""
        if not len(group):
            return value
        starts = np.concatenate(([True], group[1:] != group[:-1]))
        base = np.cumsum(starts) * self.stride
        best = np.maximum.accumulate(base + value + 1)
        found = np.concatenate(([0], best[:-1])) - base - 1
        return np.where(starts, NONE, found)

    def check(self, holds: Bools, law: str, table: str, rows: Ints, columns: Block, *shown: str) -> None:
        """Raise for the first row for which the law does not hold, and show some of its columns."""
        if holds.all():
            return
        i = int(np.argmin(holds))
        found = ", ".join(f"{name} {int(columns[name][i]):,}" for name in shown)
        raise self.broken(law, f"{table} row {int(rows[i]):,}", found)

    def check_steps(self, issues: Ints, holds: Bools, law: str, *shown: tuple[str, Ints]) -> None:
        """Raise for the first of these steps for which the law does not hold; `shown` are values beside `issues`."""
        if holds.all():
            return
        i = int(np.argmin(holds))
        issue = int(issues[i])
        found = ", ".join(f"{what} {int(values[i]):,}" for what, values in shown)
        raise self.broken(law, self.step(issue), found)

    def times(self, positions: Ints) -> Ints:
        """The times at positions of the clock [ns]; `NONE` where there is none."""
        known = np.concatenate((self.clock, [NONE, NONE]))
        return np.asarray(known[positions])

    def step(self, issue: int) -> str:
        """Name a step, with the row of its span."""
        code = (int(self.kind[issue]), int(self.a[issue]), int(self.b[issue]), int(self.c[issue]))
        row = f", spans row {int(self.row[issue]):,}" if self.row[issue] != NONE else ""
        return f"step {issue:,} ({describe(self.graph, self.plan.tiers, code)}){row}"

    def broken(self, law: str, where: str, found: str) -> InvariantError:
        """The error that names the law, the row and the numbers."""
        return InvariantError(
            f"trace of plan {self.plan.name!r}, rank {self.rank}, {where}",
            law,
            found,
            "report this: it is a bug of hosim",
        )


class Intervals:
    """Stretches of time that belong to keys; those of one key do not overlap.

    Parameters
    ----------
    key, start, end
        One row each; positions of the clock.
    stride
        More than the largest position.
    joined
        Whether stretches of a key that meet count as one.
    """

    def __init__(self, key: Ints, start: Ints, end: Ints, stride: int, *, joined: bool = False) -> None:
        order = np.lexsort((end, start, key))
        key, start, end = key[order], start[order], end[order]
        if joined and len(key):
            first = np.concatenate(([True], (key[1:] != key[:-1]) | (start[1:] > end[:-1])))
            key, start, end = key[first], start[first], end[np.append(first[1:], True)]
        self._key, self._end, self._stride = key, end, stride
        self._at = key * stride + start

    def cover(self, key: Ints, start: Ints, end: Ints) -> Bools:
        """Whether one stretch of the key holds from `start` to `end`."""
        if not len(self._at):
            return np.zeros(len(key), bool)
        last = np.searchsorted(self._at, key * self._stride + start, "right") - 1
        found = (last >= 0) & (self._key[last] == key)
        return np.asarray(found & (self._end[last] >= end))


def _issued(program: Program, trace: Trace, rank: int) -> Columns:
    """Columns of what the host issued: as recorded, or as planned where a fixed plan was not recorded."""
    rows = trace.issued[rank].whole()
    if program.planned is None or len(rows["kind"]):
        return rows["kind"], rows["a"], rows["b"], rows["c"]
    return program.planned


def _scatter(n: int, where: Ints, values: Ints, fill: int) -> Ints:
    column = np.full(n, fill, np.int64)
    column[where] = values
    return column
