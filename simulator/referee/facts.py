"""One rank's trace, laid out so that laws are comparisons of columns.

A step is known by its *issue* number; columns "by issue" have one value for each step that the host issued. Times are
compared by their position in `Facts.clock`, the sorted distinct times of the trace: positions are small, so that a
group and a position fit one 64-bit key. A step that never happened has the position `Facts.never`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InvariantError
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, Plan
from simulator.referee.naming import describe
from simulator.trace import Block, Trace

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


class Facts:
    """One rank's rows of a trace, by issue number.

    Parameters
    ----------
    graph, hardware, plan, trace
        What ran, where, as decided, and what happened.
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
    spans, residencies
        The rank's rows; ``*_row`` holds their numbers in the trace's table.
    """

    def __init__(self, graph: Graph, hardware: Hardware, plan: Plan, trace: Trace, rank: int) -> None:
        self.graph, self.hardware, self.plan, self.rank = graph, hardware, plan, rank
        self.tiers = len(plan.tiers)
        self.compute_tier = plan.tiers.index(hardware.compute_tier)
        self.complete = trace.status == "ok"
        self.sizes = np.array([t.size_bytes for t in graph.tensors], np.int64)
        self.uses = Uses.of(graph)
        self._compute_uses: tuple[Ints, Ints] | None = None
        self.kind, self.a, self.b, self.c = _issued(plan, trace, rank)
        self.spans, self.span_row = _rows_of(trace.spans.whole(), rank)
        self.waits, self.wait_row = _rows_of(trace.waits.whole(), rank)
        self.residencies, self.residency_row = _rows_of(trace.residencies.whole(), rank)
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
        named = [spans["issued_ns"], spans["start_ns"], spans["end_ns"], self.residencies["time_ns"]]
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
        self.residency_time = at[3 * count :]
        self.channel = _scatter(n, issue, spans["channel"], NONE)
        self.track = _scatter(n, issue, spans["track"], NONE)

    def steps(self, kind: int) -> Ints:
        """Issue numbers of the steps of a kind, ascending."""
        return np.flatnonzero(self.kind == kind)

    def ran(self, kind: int) -> Ints:
        """Issue numbers of the computes or copies that have a span, ascending."""
        return np.flatnonzero((self.kind == kind) & (self.row != NONE))

    def compute_uses(self) -> tuple[Ints, Ints]:
        """Issue of each use of a tensor by a compute, and its position in `uses`; by issue."""
        if self._compute_uses is None:
            computes = self.steps(COMPUTE)
            who, which = self.uses.expand(self.a[computes])
            self._compute_uses = computes[who], which
        return self._compute_uses

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
            f"trace of plan {self.plan.policy!r}, rank {self.rank}, {where}",
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


def _issued(plan: Plan, trace: Trace, rank: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Columns of what the host issued: as recorded, or as planned where a fixed plan was not recorded."""
    steps, rows = plan.fixed, trace.issued[rank].whole()
    if steps is None or len(rows["kind"]):
        return rows["kind"], rows["a"], rows["b"], rows["c"]
    kind, a, b, c = (
        np.tile(np.array(column, np.int64), plan.repeats) for column in (steps.kind, steps.a, steps.b, steps.c)
    )
    return kind, a, b, c


def _rows_of(table: Block, rank: int) -> tuple[Block, Ints]:
    if not table["rank"].any() and rank == 0:
        return table, np.arange(len(table["rank"]))
    rows = np.flatnonzero(table["rank"] == rank)
    return {name: values[rows] for name, values in table.items()}, rows


def _scatter(n: int, where: Ints, values: Ints, fill: int) -> Ints:
    column = np.full(n, fill, np.int64)
    column[where] = values
    return column
