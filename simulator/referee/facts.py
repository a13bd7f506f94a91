"""One part of a rank's trace, laid out so that laws are comparisons of columns.

A step is known by its *issue* number, counted from the first step of the part; columns "by issue" have one value for
each step of the part. Times are compared by their position in `Facts.clock`, the sorted distinct times of the part and
of what is known from earlier ones: positions are small, so that a group and a position fit one 64-bit key. A step
that never happened has the position `Facts.never`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.columns import NONE, Bools, Ints, busy, firsts
from simulator.errors import InvariantError
from simulator.plan import COMPUTE, COPY
from simulator.referee.breach import broken, describe
from simulator.referee.earlier import Earlier
from simulator.referee.op_columns import Program
from simulator.trace import CAUSES, ISSUED, Block


@dataclass(frozen=True, slots=True)
class Part:
    """Some steps of a rank, in issue order, and all rows of the trace that are of them.

    Attributes
    ----------
    issued
        The codes.
    spans, waits, residencies
        Their rows; column ``row`` holds their numbers in the trace's table.
    complete
        Whether all its steps have ended.
    is_last
        Whether the run ends with it.
    """

    issued: Block
    spans: Block
    waits: Block
    residencies: Block
    complete: bool
    is_last: bool


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
    met, unmet
        Collectives that began; and those that never did, each the next on its stream: they may have come, and hold
        their room.
    spans, waits, residencies
        The rank's rows; column ``row`` holds their numbers in the trace's table.
    source, target
        By issue, the place (``tensor * tiers + tier``) that a copy reads or a detach frees, and that a copy writes.
    """

    def __init__(self, program: Program, part: Part, earlier: Earlier, rank: int) -> None:
        self.program, self.rank, self.earlier = program, rank, earlier
        self.graph, self.hardware, self.plan = program.graph, program.hardware, program.plan
        self.tiers, self.compute_tier = program.tiers, program.compute_tier
        self.complete, self.is_last, self.first = part.complete, part.is_last, earlier.steps
        self.sizes, self.uses = program.sizes, program.uses
        self.kind, self.a, self.b, self.c = (part.issued[name] for name in ISSUED)
        self.source, self.target = self.a * self.tiers + self.b, self.a * self.tiers + self.c
        self.spans, self.waits = self._from_first(part.spans), self._from_first(part.waits)
        self.residencies = part.residencies
        self._check_spans_match_issued()
        self._lay_out()

    def _from_first(self, rows: Block) -> Block:
        """The rows with issue numbers of the part."""
        return {**rows, "issue": rows["issue"] - self.first} if self.first else rows

    def _check_spans_match_issued(self) -> None:
        spans, issue = self.spans, self.spans["issue"]
        in_range = (issue >= 0) & (issue < len(self.kind))
        self.check(in_range, "a span belongs to a step that was issued", "spans", spans, "issue")
        matches = (spans["kind"] == self.kind[issue]) & (spans["item"] == self.a[issue])
        self.check(matches, "a span is of the step that was issued", "spans", spans, "issue", "item")
        once = np.bincount(issue, minlength=1)[issue] == 1
        self.check(once, "a step has one span", "spans", spans, "issue")
        forward = (spans["issued_ns"] <= spans["start_ns"]) & (spans["start_ns"] <= spans["end_ns"])
        must = "a step is issued, then starts, then ends"
        self.check(forward, must, "spans", spans, "issued_ns", "start_ns", "end_ns")

    def _lay_out(self) -> None:
        spans, n = self.spans, len(self.kind)
        self.row, self.channel, self.track, self.issued_ns, self.start_ns, self.end_ns = (
            _scatter(n, spans["issue"], spans[name], fill)
            for names, fill in ((("row", "channel", "track"), NONE), (("issued_ns", "start_ns", "end_ns"), 0))
            for name in names
        )
        has_begun = self.row != NONE
        computes = self.ran(COMPUTE)
        self.met, self.unmet = computes[self.program.meets[self.a[computes]]], self._unmet()
        self.arrived_ns = self._arrivals_ns()
        times = self.issued_ns, self.start_ns, self.end_ns, self.arrived_ns
        known = np.concatenate([*self.earlier.moments_ns()])
        self.clock = np.unique(np.concatenate((*times, self.residencies["time_ns"], known[known != NONE])))
        self.never, self.stride = len(self.clock), len(self.clock) + 2
        self.issued, self.start, self.end, self.arrived = (
            np.where(has_begun, np.searchsorted(self.clock, ns), self.never) for ns in times
        )
        self.arrived[self.unmet] = np.searchsorted(self.clock, self.arrived_ns[self.unmet])
        self.residency_time = np.searchsorted(self.clock, self.residencies["time_ns"])

    def _unmet(self) -> Ints:
        """The first compute of each stream that never began, where it is a collective."""
        if self.complete:
            return np.empty(0, np.int64)
        left = np.setdiff1d(self.steps(COMPUTE), self.spans["issue"])
        next_ones = left[np.unique(self.b[left], return_index=True)[1]]
        return np.asarray(next_ones[self.program.meets[self.a[next_ones]]])

    def _arrivals_ns(self) -> Ints:
        """By issue, when a wait of a collective for peers began; of one that never did, what its stream did last."""
        found, waits = self.start_ns.copy(), self.waits
        if len(self.met):
            is_peer, latest, first = waits["cause"] == CAUSES.index("peer"), np.zeros_like(found), found.copy()
            np.maximum.at(latest, waits["issue"][~is_peer], waits["end_ns"][~is_peer])
            np.minimum.at(first, waits["issue"][is_peer], waits["start_ns"][is_peer])
            found[self.met] = np.maximum(first, latest)[self.met]
        for issue in self.unmet.tolist():
            mine = (self.kind == COMPUTE) & (self.track == self.b[issue])
            waited = waits["end_ns"][waits["issue"] == issue]
            since = self.earlier.track_ns.get(("stream", int(self.b[issue])), 0)
            found[issue] = max(self.end_ns[mine].max(initial=since), waited.max(initial=0))
        return found

    def steps(self, kind: int) -> Ints:
        """Issue numbers of the steps of a kind, ascending."""
        return np.flatnonzero(self.kind == kind)

    def ran(self, kind: int) -> Ints:
        """Issue numbers of the computes or copies that have a span, ascending."""
        return np.flatnonzero((self.kind == kind) & (self.row != NONE))

    def latest(self, moments: Ints, since_ns: int) -> Ints:
        """By issue, and at the end, the latest of these moments of the steps before, and of one of an earlier part."""
        return np.maximum.accumulate(np.append(self.at(np.array([since_ns])), moments))

    @cached_property
    def compute_uses(self) -> tuple[Ints, Ints]:
        """Issue of each use of a tensor by a compute, and its position in `uses`; by issue."""
        computes, late = self.steps(COMPUTE), self.program.late
        who, which = self.uses.expand(self.a[computes])
        issue = computes[who]
        if late is not None:
            chosen_by, chosen = late.chosen(computes, self.a[computes], self.earlier.runs)
            issue, which = np.concatenate((issue, chosen_by)), np.concatenate((which, chosen))
            order = np.argsort(issue, kind="stable")
            issue, which = issue[order], which[order]
        return issue, which

    @cached_property
    def used(self) -> tuple[Ints, Ints]:
        """Issue of each use of a tensor by a compute, and the place that it uses."""
        issue, which = self.compute_uses
        return issue, self.uses.tensor[which] * self.tiers + self.compute_tier

    @cached_property
    def made(self) -> tuple[Ints, Ints]:
        """Issue and place of all that is made: by computes what they write, and then what copies bring."""
        (issue, place), copies = self.used, self.steps(COPY)
        writes = self.uses.writes[self.compute_uses[1]]
        return np.append(issue[writes], copies), np.append(place[writes], self.target[copies])

    def alone_ns(self, computes: Ints) -> Ints:
        """Time of each of these computes alone [ns]."""
        found = self.program.alone_ns[self.a[computes]]
        if self.program.late is not None:
            self.program.late.set_times(found, computes, self.a[computes], self.earlier.runs)
        return found

    def running_max(self, group: Ints, value: Ints, first_ns: Ints) -> Ints:
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
        starts = firsts(group)
        base = np.cumsum(starts) * self.stride
        best = np.maximum.accumulate(base + value + 1)
        found = np.where(starts, NONE, np.append(0, best[:-1]) - base - 1)
        return np.maximum(found, self.at(first_ns[group]))

    def at(self, times_ns: Ints) -> Ints:
        """Positions of times that are known from earlier parts; `NONE` where there is none."""
        return np.where(times_ns == NONE, NONE, np.searchsorted(self.clock, times_ns))

    def around(self, waits: Block) -> tuple[Ints, Ints]:
        """Positions of the last moment before waits begin, and of the first after they end."""
        start, end = waits["start_ns"], waits["end_ns"]
        return np.searchsorted(self.clock, start, "right") - 1, np.searchsorted(self.clock, end)

    def check(self, holds: Bools, law: str, table: str, rows: Block, *shown: str) -> None:
        """Raise for the first row for which the law does not hold, and show some of its columns."""
        if holds.all():
            return
        i = int(np.argmin(holds))
        at = {"issue": self.first}
        found = ", ".join(f"{name} {int(rows[name][i]) + at.get(name, 0):,}" for name in shown)
        raise self.broken(law, f"{table} row {int(rows['row'][i]):,}", found)

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
        return broken(f"trace of plan {self.plan.name!r}, rank {self.rank}, {where}", law, found)


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
        order, first, self._end = busy(key, start, end, joins=joined)
        self._key, self._stride = key[order][first], stride
        self._at = self._key * stride + start[order][first]

    def cover(self, key: Ints, start: Ints, end: Ints) -> Bools:
        """Whether one stretch of the key holds from `start` to `end`."""
        if not len(self._at):
            return np.zeros(len(key), bool)
        last = np.searchsorted(self._at, key * self._stride + start, "right") - 1
        found = (last >= 0) & (self._key[last] == key)
        return np.asarray(found & (self._end[last] >= end))


def _scatter(n: int, where: Ints, values: Ints, fill: int) -> Ints:
    column = np.full(n, fill, np.int64)
    column[where] = values
    return column
