"""One part of a rank's trace, laid out so that laws are comparisons of columns.

A step is known by its *issue* number, counted from the first step of the part; columns "by issue" have one value for
each step of the part. Times are compared by their position in `Facts.clock`, the sorted distinct times of the part and
of what is known from earlier ones: positions are small, so that a group and a position fit one 64-bit key. A step
that never happened has the position `Facts.never`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.errors import InvariantError
from simulator.plan import COMPUTE
from simulator.referee.breach import describe
from simulator.referee.columns import NONE, Bools, Ints
from simulator.referee.earlier import Earlier
from simulator.referee.op_columns import Columns, Program
from simulator.trace import CAUSES, Block, Table, Trace


@dataclass(frozen=True, slots=True)
class Part:
    """Some steps of a rank, in issue order, and all rows of the trace that are of them.

    Attributes
    ----------
    issued
        The codes.
    spans, waits, residencies
        Their rows, each with its numbers in the trace's table.
    complete
        Whether all its steps have ended.
    is_last
        Whether the run ends with it.
    """

    issued: Columns
    spans: tuple[Block, Ints]
    waits: tuple[Block, Ints]
    residencies: tuple[Block, Ints]
    complete: bool
    is_last: bool


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

    def part(self, program: Program, rank: int) -> Part:
        """All that happened on a rank."""
        spans, waits, residencies = (rows.of(rank) for rows in (self.spans, self.waits, self.residencies))
        issued, complete = _issued(program, self.trace, rank), self.trace.status == "ok"
        return Part(issued, spans, waits, residencies, complete=complete, is_last=True)


class Facts:
    """A part of one rank's trace, by issue number.

    Parameters
    ----------
    program
        What it ran.
    part
        What happened.
    earlier
        What is known of the parts before.
    rank
        Which rank.

    Attributes
    ----------
    first
        How many steps were issued before the part.
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

    def __init__(self, program: Program, part: Part, earlier: Earlier, rank: int) -> None:
        self.program, self.rank, self.earlier = program, rank, earlier
        self.graph, self.hardware, self.plan = program.graph, program.hardware, program.plan
        self.tiers = len(self.plan.tiers)
        self.compute_tier = self.plan.tiers.index(self.hardware.compute_tier)
        self.complete, self.is_last, self.first = part.complete, part.is_last, earlier.steps
        self.sizes, self.uses = program.sizes, program.uses
        self._compute_uses: tuple[Ints, Ints] | None = None
        self.kind, self.a, self.b, self.c = part.issued
        self.spans, self.span_row = self._from_first(part.spans[0]), part.spans[1]
        self.waits, self.wait_row = self._from_first(part.waits[0]), part.waits[1]
        self.residencies, self.residency_row = part.residencies
        self._check_spans_match_issued()
        self._lay_out()

    def _from_first(self, rows: Block) -> Block:
        """The rows with issue numbers of the part."""
        return {**rows, "issue": rows["issue"] - self.first} if self.first else rows

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
        known = np.unique(np.concatenate([*self.earlier.moments_ns()]))
        self.clock, at = np.unique(np.concatenate((*named, known[known != NONE])), return_inverse=True)
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
        before = 3 * count + len(arrived_ns)
        self.residency_time = at[before : before + len(self.residency_row)]
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
            since = self.earlier.track_ns.get(("stream", int(self.b[issue])), 0)
            found[number] = max(spans["end_ns"][mine].max(initial=since), waited.max(initial=0))
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

    @property
    def queues(self) -> Ints:
        """For each link the queue that it waits in, as the number of the first link there."""
        return self.program.queues

    def steps(self, kind: int) -> Ints:
        """Issue numbers of the steps of a kind, ascending."""
        return np.flatnonzero(self.kind == kind)

    def ran(self, kind: int) -> Ints:
        """Issue numbers of the computes or copies that have a span, ascending."""
        return np.flatnonzero((self.kind == kind) & (self.row != NONE))

    def last_computes(self, moments: Ints, *, ended: bool) -> Ints:
        """By issue, the moment of the last compute issued before; `NONE` if there is none.

        Parameters
        ----------
        moments
            By issue, the position of its start (for a collective, of its coming) or of its end.
        ended
            Which of the two.
        """
        host, at = self.earlier.host, np.arange(len(self.kind))
        before = np.maximum.accumulate(np.where(self.kind == COMPUTE, at, NONE)) if len(at) else at
        known = self.at(np.array([host.last_end_ns if ended else host.last_start_ns]))
        return np.asarray(np.append(moments, known)[before])

    def compute_uses(self) -> tuple[Ints, Ints]:
        """Issue of each use of a tensor by a compute, and its position in `uses`; by issue."""
        if self._compute_uses is None:
            computes, late = self.steps(COMPUTE), self.program.late
            who, which = self.uses.expand(self.a[computes])
            issue = computes[who]
            if late is not None:
                chosen_by, chosen = late.chosen(computes, self.a[computes], self.earlier.runs)
                issue, which = np.concatenate((issue, chosen_by)), np.concatenate((which, chosen))
                order = np.argsort(issue, kind="stable")
                issue, which = issue[order], which[order]
            self._compute_uses = issue, which
        return self._compute_uses

    def alone_ns(self, computes: Ints) -> Ints:
        """Time of each of these computes alone [ns]."""
        found = self.program.alone_ns[self.a[computes]]
        if self.program.late is not None:
            self.program.late.set_times(found, computes, self.a[computes], self.earlier.runs)
        return found

    def running_max(self, group: Ints, value: Ints, first_ns: Ints | None = None) -> Ints:
        """The largest value among the earlier rows of the same group, or `NONE`; groups are ascending.

        Parameters
        ----------
        group, value
            The rows.
        first_ns
            By group, what is known from earlier parts [ns].
        """
        if not len(group):
            return value
        starts = np.concatenate(([True], group[1:] != group[:-1]))
        base = np.cumsum(starts) * self.stride
        best = np.maximum.accumulate(base + value + 1)
        found = np.concatenate(([0], best[:-1])) - base - 1
        found = np.where(starts, NONE, found)
        return found if first_ns is None else np.maximum(found, self.at(first_ns[group]))

    def at(self, times_ns: Ints) -> Ints:
        """Positions of times that are known from earlier parts; `NONE` where there is none."""
        return np.where(times_ns == NONE, NONE, np.searchsorted(self.clock, times_ns))

    def check(self, holds: Bools, law: str, table: str, rows: Ints, columns: Block, *shown: str) -> None:
        """Raise for the first row for which the law does not hold, and show some of its columns."""
        if holds.all():
            return
        i = int(np.argmin(holds))
        at = {"issue": self.first}
        found = ", ".join(f"{name} {int(columns[name][i]) + at.get(name, 0):,}" for name in shown)
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
        return f"step {self.first + issue:,} ({describe(self.graph, self.plan.tiers, code)}){row}"

    def close(self) -> None:
        """Note what laws of later parts will ask for."""
        host, computes = self.earlier.host, self.steps(COMPUTE)
        self.earlier.steps += len(self.kind)
        self.earlier.runs += np.bincount(self.a[computes], minlength=len(self.earlier.runs))
        if len(computes):
            host.last_start_ns, host.last_end_ns = int(self.arrived_ns[computes[-1]]), int(self.end_ns[computes[-1]])
            host.ended_ns = max(host.ended_ns, int(self.end_ns[computes].max()))

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
    rows, planned = trace.issued[rank].whole(), program.planned_steps
    if planned is None or len(rows["kind"]):
        return rows["kind"], rows["a"], rows["b"], rows["c"]
    return program.planned(0, planned)


def _scatter(n: int, where: Ints, values: Ints, fill: int) -> Ints:
    column = np.full(n, fill, np.int64)
    column[where] = values
    return column
