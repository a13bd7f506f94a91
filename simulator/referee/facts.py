"""One part of a rank's trace, laid out so that laws are comparisons of columns.

A run is checked part by part: so many actions in issue order that have all ended. A run that was kept is one part. An
action is known by its *issue* number, counted from the first action of the part; columns "by issue" have one value for
each action of the part. Times are compared by their position in `Facts.clock`, the sorted distinct times of the part,
and of what is known from earlier ones: positions are small, so that a group and a position fit one 64-bit key. An
action that never happened has the position `Facts.never`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simulator.errors import InvariantError
from simulator.graph import Graph
from simulator.plan import COMPUTE, COPY, DETACH, SYNC, Code
from simulator.referee.op_columns import ProgramColumns
from simulator.trace import CAUSES, ISSUED, NONE, Block, Bools, Ints, busy, firsts, lasts

Stretches = tuple[Ints, Ints, Ints]
"""Key, start and end of each."""


@dataclass(eq=False)
class Earlier:
    """What later parts must know of earlier ones; it does not grow with the run.

    Attributes
    ----------
    actions
        How many were issued.
    runs
        By op, how often it ran.
    latest
        By law, for each group the latest moment of its rows (see `Facts.latest`) [ns].
    rows
        By law, rows that actions to come may be judged by.
    """

    steps: int
    runs: Ints
    latest: dict[str, Ints] = field(default_factory=dict)
    rows: dict[str, Ints] = field(default_factory=dict)

    @classmethod
    def of(cls, program: ProgramColumns) -> Earlier:
        """What is known before the first action."""
        valid = np.full(len(program.sizes) * program.tiers, NONE)
        valid[program.valid_homes] = 0
        return cls(0, np.zeros(len(program.graph.ops), np.int64), {"valid": valid})

    def kept(self, law: str, columns: int) -> Ints:
        """The rows that a law keeps, as columns."""
        return self.rows.get(law, np.empty((columns, 0), np.int64))


class Accesses(NamedTuple):
    """What actions do with tensors, in issue order: a row for each use by a compute, two for a copy, one for others.

    Attributes
    ----------
    issue, kind
        The action.
    place
        Which place of which tensor it is (``tensor * tiers + tier``).
    reads, makes
        Whether the action needs what is valid there, and whether it makes it so.
    """

    issue: Ints
    kind: Ints
    place: Ints
    reads: Bools
    makes: Bools

    def pick(self, rows: Bools | Ints) -> Accesses:
        """Some of the rows."""
        issue, kind, place, reads, makes = self
        return Accesses(issue[rows], kind[rows], place[rows], reads[rows], makes[rows])


class Facts:
    """A part of one rank's trace, by issue number.

    Parameters
    ----------
    program
        What it ran.
    part
        By table: ``issued``, the codes of some actions in issue order; ``spans`` and ``waits``, all rows of these; and
        ``residencies``, what happened to places meanwhile, with those of earlier parts that no action has given up, and
        as ``is_explained`` whether it is known which action took a place.
    earlier
        What is known of the parts before.
    rank
        Which rank.
    complete, is_last
        Whether all actions have ended; whether the run ends with the part.

    Attributes
    ----------
    first
        How many actions were issued before the part.
    kind, a, b, c
        What was issued: the codes, by issue. A fixed plan that was not recorded counts as issued in full.
    row, track, channel, issued_ns, start_ns, end_ns
        The span of each action by issue: its row, or `NONE` and times of 0.
    start, end, issued
        Positions of these times in `clock`; `never` if there is no span.
    arrived, arrived_ns
        When a collective had come to its meeting, at the earliest: from then on it waited for peers. For other actions
        the start.
    met, unmet
        Collectives that began; and those that never did, each the next on its stream: they may have come, and hold
        their room.
    spans, waits, residencies
        The rank's rows; column ``row`` holds their numbers in the trace's table. Rows of the residencies are given up
        where ``stays`` is 0.
    """

    def __init__(
        self,
        program: ProgramColumns,
        part: Mapping[str, Block],
        earlier: Earlier,
        rank: int,
        *,
        complete: bool,
        is_last: bool,
    ) -> None:
        self.program, self.rank, self.earlier, self.first = program, rank, earlier, earlier.steps
        self.complete, self.is_last = complete, is_last
        self.kind, self.a, self.b, self.c = (part["issued"][name] for name in ISSUED)
        own = ({**part[name], "issue": part[name]["issue"] - self.first} for name in ("spans", "waits"))
        self.spans, self.waits = own
        self.residencies = part["residencies"]
        self._check_spans_match_issued()
        self._lay_out()

    def _check_spans_match_issued(self) -> None:
        spans, issue = self.spans, self.spans["issue"]
        in_range = (issue >= 0) & (issue < len(self.kind))
        self.check(in_range, "a span belongs to an action that was issued", "spans", spans, "issue")
        matches = (spans["kind"] == self.kind[issue]) & (spans["item"] == self.a[issue])
        self.check(matches, "a span is of the action that was issued", "spans", spans, "issue", "item")
        once = np.bincount(issue, minlength=1)[issue] == 1
        self.check(once, "an action has one span", "spans", spans, "issue")
        forward = (spans["issued_ns"] <= spans["start_ns"]) & (spans["start_ns"] <= spans["end_ns"])
        must = "an action is issued, then starts, then ends"
        self.check(forward, must, "spans", spans, "issued_ns", "start_ns", "end_ns")

    def _lay_out(self) -> None:
        spans, waits, n = self.spans, self.waits, len(self.kind)
        names = ("row", "track", "channel", "issued_ns", "start_ns", "end_ns")
        fills = np.array([NONE, NONE, NONE, 0, 0, 0])
        by_issue = np.repeat(fills[:, None], n, axis=1)
        by_issue[:, spans["issue"]] = [spans[name] for name in names]
        self.row, self.track, self.channel, self.issued_ns, self.start_ns, self.end_ns = by_issue
        has_begun, computes = self.row != NONE, self.ran(COMPUTE)
        self.met, self.unmet = computes[self.program.meets[self.a[computes]]], self._unmet()
        self.arrived_ns = self._arrivals_ns()
        times = self.issued_ns, self.start_ns, self.end_ns, self.arrived_ns
        copies = self.earlier.kept("copies", 4)[2:].ravel()
        known = np.concatenate((*self.earlier.latest.values(), copies))
        moments = waits["start_ns"], waits["end_ns"], self.residencies["time_ns"], known[known != NONE]
        ordered = np.sort(np.concatenate((*times, *moments)))
        self.clock = ordered[firsts(ordered)]
        self.never, self.stride = len(self.clock), len(self.clock) + 2
        self.issued, self.start, self.end, self.arrived = (np.where(has_begun, self.at(ns), self.never) for ns in times)
        self.arrived[self.unmet] = self.at(self.arrived_ns[self.unmet])
        self.waits |= {"start": self.at(waits["start_ns"]), "end": self.at(waits["end_ns"])}
        rows = self.residencies
        rows |= {"at": self.at(rows["time_ns"]), "stays": np.ones(len(rows["row"]), np.int64)}

    def _unmet(self) -> Ints:
        """The first compute of each stream that never began, where it is a collective."""
        if self.complete:
            return np.empty(0, np.int64)
        left = np.setdiff1d(self.steps(COMPUTE), self.spans["issue"])
        next_ones = left[np.unique(self.b[left], return_index=True)[1]]
        return np.asarray(next_ones[self.program.meets[self.a[next_ones]]])

    def _arrivals_ns(self) -> Ints:
        """By issue, when a wait of a collective for peers began; of one that never did, what its stream did last."""
        arrived: Ints = self.start_ns.copy()
        waits = self.waits
        if len(self.met):
            is_peer, latest, first = waits["cause"] == CAUSES.index("peer"), np.zeros_like(arrived), arrived.copy()
            np.maximum.at(latest, waits["issue"][~is_peer], waits["end_ns"][~is_peer])
            np.minimum.at(first, waits["issue"][is_peer], waits["start_ns"][is_peer])
            arrived[self.met] = np.maximum(first, latest)[self.met]
        for issue in self.unmet.tolist():
            on_stream = (self.kind == COMPUTE) & (self.track == self.b[issue])
            waited = waits["end_ns"][waits["issue"] == issue]
            arrived[issue] = max(self.end_ns[on_stream].max(initial=0), waited.max(initial=0))
        return arrived

    @cached_property
    def accesses(self) -> Accesses:
        """What actions do with tensors."""
        program, tiers = self.program, self.program.tiers
        computes, copies, detaches, syncs = (self.steps(kind) for kind in (COMPUTE, COPY, DETACH, SYNC))
        who, which = program.uses_of(computes, self.a[computes], self.earlier.runs)
        uses, others = program.uses, np.concatenate((copies, copies, detaches, syncs))
        tier = np.concatenate((self.b[copies], self.c[copies], self.b[detaches], self.b[syncs]))
        is_target = (np.arange(len(others)) >= len(copies)) & (np.arange(len(others)) < 2 * len(copies))
        issue = np.append(who, others)
        place = np.append(uses.tensor[which] * tiers + program.compute_tier, self.a[others] * tiers + tier)
        reads = np.append(uses.reads[which], np.arange(len(others)) < len(copies))
        makes = np.append(uses.writes[which], is_target)
        return Accesses(issue, self.kind[issue], place, reads, makes).pick(np.argsort(issue, kind="stable"))

    def steps(self, kind: int) -> Ints:
        """Issue numbers of the actions of a kind, ascending."""
        return np.flatnonzero(self.kind == kind)

    def ran(self, kind: int) -> Ints:
        """Issue numbers of the computes or copies that have a span, ascending."""
        return np.flatnonzero((self.kind == kind) & (self.row != NONE))

    def latest(self, law: str, group: Ints | None, moment: Ints) -> Ints:
        """By row, the latest moment of the rows before it in its group, earlier parts included; or `NONE`.

        Parameters
        ----------
        law
            Under which name it is known to later parts.
        group, moment
            The rows, in issue order; no group if all are one.
        """
        if not len(moment):
            return moment
        group = np.zeros(len(moment), np.int64) if group is None else group
        known = self.earlier.latest.get(law, np.empty(0, np.int64))
        known = np.append(known, np.full(max(0, int(group.max()) + 1 - len(known)), NONE))
        order = np.argsort(group, kind="stable")
        group, moment = group[order], moment[order]
        is_first, is_last = firsts(group), lasts(group)
        base = np.cumsum(is_first) * self.stride
        best = np.maximum.accumulate(base + moment + 1)
        before = np.where(is_first, NONE, np.append(0, best[:-1]) - base - 1)
        latest = np.empty_like(before)
        latest[order] = np.maximum(before, self.at(known[group]))
        ends = self.times((best - base - 1)[is_last])
        known[group[is_last]] = np.maximum(known[group[is_last]], ends)
        self.earlier.latest[law] = known
        return latest

    def by_issue(self, issues: Ints, moments: Ints) -> Ints:
        """By issue, the latest of the moments of an action; `NONE` if it has none."""
        latest = np.full(len(self.kind), NONE)
        np.maximum.at(latest, issues, moments)
        return latest

    def at(self, times_ns: Ints) -> Ints:
        """Positions of times; `NONE` where there is none."""
        positions: Ints = np.searchsorted(self.clock, times_ns)
        positions[times_ns == NONE] = NONE
        return positions

    def times(self, positions: Ints) -> Ints:
        """The times at positions of the clock [ns]; `NONE` where there is none."""
        return np.asarray(np.concatenate((self.clock, [NONE, NONE]))[positions])

    def check(self, holds: Bools, law: str, table: str, rows: Block, *shown: str) -> None:
        """Raise for the first row for which the law does not hold, and show some of its columns."""
        values = ((name, rows[name] + self.first if name == "issue" else rows[name]) for name in shown)
        hold(holds, law, lambda i: self._at(f"{table} row {int(rows['row'][i]):,}"), *values)

    def check_steps(self, issues: Ints, holds: Bools, law: str, *shown: tuple[str, Ints]) -> None:
        """Raise for the first of these actions for which the law does not hold; `shown` are values beside `issues`."""
        hold(holds, law, lambda i: self._at(self.step(int(issues[i]))), *shown)

    def check_starts(self, law: str, allowed: Ints) -> None:
        """Raise for the first action that starts, or acts, before a law lets it: by issue, positions of the clock."""
        holds = (self.start == NONE) | (self.start >= allowed)
        shown = ("starts at ns", self.times(self.start)), ("not before ns", self.times(allowed))
        self.check_steps(np.arange(len(self.kind)), holds, law, *shown)

    def step(self, issue: int) -> str:
        """Name an action, with the row of its span."""
        code = (int(self.kind[issue]), int(self.a[issue]), int(self.b[issue]), int(self.c[issue]))
        row = f", spans row {int(self.row[issue]):,}" if self.row[issue] != NONE else ""
        return f"action {self.first + issue:,} ({describe(self.program.graph, self.program.plan.tiers, code)}){row}"

    def close(self) -> None:
        """Count the actions of the part among the earlier ones."""
        self.earlier.steps += len(self.kind)
        self.earlier.runs += np.bincount(self.a[self.steps(COMPUTE)], minlength=len(self.earlier.runs))

    @property
    def settled_ns(self) -> int:
        """Before this time no action of a later part can have been kept waiting by room alone [ns].

        A compute comes after the one before it on its stream, a copy after the last compute issued before it.
        """
        latest, streams = self.earlier.latest, [*self.program.streams]
        return int(latest["filled"][streams].min(initial=int(latest["point"][0])))

    def broken(self, law: str, where: str, found: str) -> InvariantError:
        """The error that names the law, the row and the numbers."""
        return broken(self._at(where), law, found)

    def _at(self, where: str) -> str:
        return f"trace of plan {self.program.plan.name!r}, rank {self.rank}, {where}"


def hold(holds: Bools, law: str, where: Callable[[int], str], *shown: tuple[str, Ints]) -> None:
    """Raise for the first row for which a law does not hold.

    Parameters
    ----------
    holds, law
        By row, whether the law holds; what it says.
    where
        From the number of a row to its name.
    shown
        Columns whose values the message shows, each with what it calls them.
    """
    if not holds.all():
        i = int(np.argmin(holds))
        raise broken(where(i), law, ", ".join(f"{name} {int(values[i]):,}" for name, values in shown))


def broken(where: str, law: str, found: str) -> InvariantError:
    """The error that names the row, the law and the numbers."""
    return InvariantError(where, law, found, "report this: it is a bug of hosim")


def describe(graph: Graph, tiers: Sequence[str], code: Code) -> str:
    """Say what an action does, such as ``copy L03/attn.q.out hbm -> ddr``.

    Parameters
    ----------
    graph
        For the names of ops and tensors.
    tiers
        Tier names by id.
    code
        The action; ids that are out of range are shown as numbers.
    """
    kind, a, b, c = code
    ops, tensors = [op.name for op in graph.ops], [tensor.name for tensor in graph.tensors]
    lists = ((ops if kind == COMPUTE else tensors, a), (tiers, b), (tiers, c))
    what, source, target = (names[i] if 0 <= i < len(names) else str(i) for names, i in lists)
    said = {
        COMPUTE: f"compute {what}",
        COPY: f"copy {what} {source} -> {target}",
        DETACH: f"detach {what} from {source}",
        SYNC: f"sync {what}",
    }
    return said.get(kind, f"kind {kind}")


def covered(rows: Stretches, by: Stretches, stride: int, *, joined: bool = False) -> Bools:
    """Whether each row lies within one stretch of its key; of a key, stretches do not overlap.

    Parameters
    ----------
    rows, by
        Key, start and end of each; positions of the clock.
    stride
        More than the largest position.
    joined
        Whether stretches of a key that meet count as one.
    """
    (key, start, end), (keys, starts, _) = rows, by
    order, first, ends = busy(*by, joins=joined)
    if not len(first):
        return np.zeros(len(key), bool)
    keys, starts = keys[order][first], starts[order][first]
    last = np.searchsorted(keys * stride + starts, key * stride + start, "right") - 1
    return np.asarray((last >= 0) & (keys[last] == key) & (ends[last] >= end))
