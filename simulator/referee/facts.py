"""One rank's trace, laid out so that laws are comparisons of columns.

An action is identified by its *issue* number; columns "by issue" have one value for each action. Times are compared by
their positions in `Facts.clock`, the sorted distinct times: positions are small, so a group and a position fit into one
64-bit key. An action that never happened has the position `Facts.never`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simulator.draws import Draws
from simulator.errors import InvariantError, PlanError
from simulator.graph import Graph
from simulator.plan import COMPUTE, COPY, DETACH, SYNC, Code, Plan
from simulator.referee.op_columns import ProgramColumns
from simulator.scenario import AllocatorKind
from simulator.trace import CAUSES, ISSUED, NONE, Block, Bools, Ints, busy, distinct, firsts


class RankPlan(NamedTuple):
    """A plan of a rank, with its draws, the allocator of its compute tier, the tensors that stay there, and delays."""

    plan: Plan
    draws: Draws | None
    allocator: AllocatorKind = "ideal"
    pinned: Collection[int] = ()
    delays_ns: Mapping[int, int] = {}


Stretches = tuple[Ints, Ints, Ints]
"""Key, start and end of stretches of time."""


class Accesses(NamedTuple):
    """Accesses of places by actions, in issue order: a row for each use by a compute, two for a copy, one for others.

    Attributes
    ----------
    place
        The place (``tensor * tiers + tier``).
    reads, makes
        Whether the action needs the place to be valid, and whether it makes it valid.
    """

    issue: Ints
    kind: Ints
    place: Ints
    reads: Bools
    makes: Bools

    def pick(self, rows: Bools | Ints) -> Accesses:
        """Return some of the rows."""
        issue, kind, place, reads, makes = self
        return Accesses(issue[rows], kind[rows], place[rows], reads[rows], makes[rows])


class Facts:
    """One rank's trace, by issue number.

    Parameters
    ----------
    program
        The graph and the plan that it ran.
    tables
        The rank's rows of ``issued``, ``spans``, ``waits`` and ``residencies``; column ``row`` of the last three holds
        their numbers in the trace.
    rank
        The rank.
    complete
        Whether the run came to its end.

    Attributes
    ----------
    kind, a, b, c
        The codes that were issued, by issue. A fixed plan that was not recorded counts as issued in full.
    row, track, channel, issued_ns, start_ns, end_ns
        The span of each action by issue: its row, or `NONE` and times of 0.
    start, end, issued
        Positions of these times in `clock`; `never` if there is no span.
    arrived, arrived_ns
        The earliest time at which a collective can have arrived, to wait for peers; the start of other actions.
    met, unmet
        Collectives that began; and those that never did, each the next on its stream, which may have arrived, and then
        hold their room.
    spans, waits, residencies
        The rank's rows.
    """

    def __init__(self, program: ProgramColumns, tables: Mapping[str, Block], rank: int, *, complete: bool) -> None:
        self.program, self.rank, self.complete = program, rank, complete
        self.kind, self.a, self.b, self.c = (tables["issued"][name] for name in ISSUED)
        self.spans, self.waits, self.residencies = (dict(tables[name]) for name in ("spans", "waits", "residencies"))
        self._check_spans_match_issued()
        spans, waits, n = self.spans, self.waits, len(self.kind)
        names = ("row", "track", "channel", "issued_ns", "start_ns", "end_ns")
        fills = np.array([NONE, NONE, NONE, 0, 0, 0])
        by_issue = np.repeat(fills[:, None], n, axis=1)
        by_issue[:, spans["issue"]] = [spans[name] for name in names]
        self.row, self.track, self.channel, self.issued_ns, self.start_ns, self.end_ns = by_issue
        has_begun, computes = self.row != NONE, self.ran(COMPUTE)
        unrun = np.flatnonzero((self.kind == COMPUTE) & ~has_begun & (not complete))
        heads = unrun[np.unique(self.b[unrun], return_index=True)[1]]  # the first on each stream that never began
        self.met, self.unmet = (issues[self.program.meets[self.a[issues]]] for issues in (computes, heads))
        self.arrived_ns = self._arrivals_ns()
        times = self.issued_ns, self.start_ns, self.end_ns, self.arrived_ns
        moments = waits["start_ns"], waits["end_ns"], self.residencies["time_ns"], [0]
        self.clock = distinct(np.concatenate((*times, *moments)))
        self.never, self.stride = len(self.clock), len(self.clock) + 2
        self.issued, self.start, self.end, self.arrived = (np.where(has_begun, self.at(ns), self.never) for ns in times)
        self.arrived[self.unmet] = self.at(self.arrived_ns[self.unmet])
        self.waits |= {"start": self.at(waits["start_ns"]), "end": self.at(waits["end_ns"])}
        self.residencies |= {"at": self.at(self.residencies["time_ns"])}
        self.accesses = self._accesses()

    def _check_spans_match_issued(self) -> None:
        spans, issue = self.spans, self.spans["issue"]
        in_range = (issue >= 0) & (issue < len(self.kind))
        self.check(in_range, "a span belongs to an action that was issued", "spans", spans, "issue")
        matches = (spans["kind"] == self.kind[issue]) & (spans["item"] == self.a[issue])
        self.check(matches, "a span is of the action that was issued", "spans", spans, "issue", "item")
        once = np.bincount(issue, minlength=1)[issue] == 1
        self.check(once, "an action has one span", "spans", spans, "issue")
        forward = (spans["issued_ns"] <= spans["start_ns"]) & (spans["start_ns"] <= spans["end_ns"])
        law = "an action is issued, then starts, then ends"
        self.check(forward, law, "spans", spans, "issued_ns", "start_ns", "end_ns")

    def _arrivals_ns(self) -> Ints:
        """Return, by issue, when a collective arrived, to wait for peers; if it never began, when its stream ended."""
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

    def _accesses(self) -> Accesses:
        program, tiers = self.program, self.program.tiers
        computes, copies, detaches, syncs = (self.actions(kind) for kind in (COMPUTE, COPY, DETACH, SYNC))
        user, use = program.uses_of(computes, self.a[computes])
        uses, others = program.uses, np.concatenate((copies, copies, detaches, syncs))
        tier = np.concatenate((self.b[copies], self.c[copies], self.b[detaches], self.b[syncs]))
        is_target = (np.arange(len(others)) >= len(copies)) & (np.arange(len(others)) < 2 * len(copies))
        issue = np.append(user, others)
        read_in = self._tiers_read(user, uses.tensor[use])
        place = np.append(uses.tensor[use] * tiers + read_in, self.a[others] * tiers + tier)
        reads = np.append(uses.reads[use], np.arange(len(others)) < len(copies))
        makes = np.append(uses.writes[use], is_target)
        return Accesses(issue, self.kind[issue], place, reads, makes).pick(np.argsort(issue, kind="stable"))

    def _tiers_read(self, issue: Ints, tensor: Ints) -> Ints:
        """Return the tier of each use by a compute: that of its device, or where it reads in place, as issued."""
        program, tier = self.program, self.program.tier_of[self.a[issue]]
        valid, compute_tier = {t: {program.plan.home[t]} for t in program.in_place.tolist()}, program.compute_tier
        moves = np.flatnonzero(((self.kind == COPY) | (self.kind == DETACH)) & among(self.a, program.in_place))
        to_come = list(reversed(moves.tolist()))
        for row in np.flatnonzero(among(tensor, program.in_place)).tolist():
            while to_come and to_come[-1] < issue[row]:
                move = to_come.pop()
                places = valid[int(self.a[move])]
                places.add(int(self.c[move])) if self.kind[move] == COPY else places.discard(int(self.b[move]))
            places = valid[int(tensor[row])]
            elsewhere = (source for source in program.loads if source in places)
            tier[row] = compute_tier if compute_tier in places else next(elsewhere, compute_tier)
        return tier

    def actions(self, kind: int) -> Ints:
        """Return the issue numbers of the actions of a kind, ascending."""
        return np.flatnonzero(self.kind == kind)

    def ran(self, kind: int) -> Ints:
        """Return the issue numbers of the computes or copies that have a span, ascending."""
        return np.flatnonzero((self.kind == kind) & (self.row != NONE))

    def latest(self, moment: Ints, group: Ints | None = None) -> Ints:
        """Return, for each row in issue order, the latest moment of the rows before it in its group, or `NONE`."""
        if group is None:
            return np.append(NONE, np.maximum.accumulate(moment))[:-1]
        order = np.argsort(group, kind="stable")
        is_first, best = firsts(group[order]), moment[order]
        base = np.cumsum(is_first) * self.stride
        best += base  # so that each group begins above all groups before it
        np.maximum.accumulate(best, out=best)
        best[1:] = best[:-1] - base[1:]
        best[is_first] = NONE
        latest = np.empty_like(best)
        latest[order] = best
        return latest

    def by_issue(self, issues: Ints, moments: Ints) -> Ints:
        """Return, by issue, the latest of the moments of an action; `NONE` if it has none."""
        latest = np.full(len(self.kind), NONE)
        np.maximum.at(latest, issues, moments)
        return latest

    def at(self, times_ns: Ints) -> Ints:
        """Return the positions of times; `NONE` where there is none."""
        positions: Ints = np.searchsorted(self.clock, times_ns)
        positions[times_ns == NONE] = NONE
        return positions

    def times(self, positions: Ints) -> Ints:
        """Return the times at positions of the clock [ns]; `NONE` where there is none."""
        return np.asarray(np.concatenate((self.clock, [NONE, NONE]))[positions])

    def check(self, holds: Bools, law: str, table: str, rows: Block, *shown: str) -> None:
        """Raise for the first row for which the law does not hold, and show some of its columns."""
        columns = ((name, rows[name]) for name in shown)
        require(holds, law, lambda i: self._where(f"{table} row {int(rows['row'][i]):,}"), *columns)

    def check_actions(self, issues: Ints, holds: Bools, law: str, *shown: tuple[str, Ints]) -> None:
        """Raise for the first of these actions for which the law does not hold; `shown` are values beside `issues`."""
        require(holds, law, lambda i: self._where(self._action_name(int(issues[i]))), *shown)

    def check_starts(self, law: str, allowed: Ints) -> None:
        """Raise for the first action that starts, or acts, before a law lets it: by issue, positions of the clock."""
        holds = (self.start == NONE) | (self.start >= allowed)
        shown = ("starts at ns", self.times(self.start)), ("not before ns", self.times(allowed))
        self.check_actions(np.arange(len(self.kind)), holds, law, *shown)

    def _action_name(self, issue: int) -> str:
        """Name an action, with the row of its span."""
        code = (int(self.kind[issue]), int(self.a[issue]), int(self.b[issue]), int(self.c[issue]))
        row = f", spans row {int(self.row[issue]):,}" if self.row[issue] != NONE else ""
        return f"action {issue:,} ({describe(self.program.graph, self.program.plan.tiers, code)}){row}"

    def broken(self, law: str, where: str, found: str) -> InvariantError:
        """Make the error that names the law, the row and the numbers."""
        return broken(self._where(where), law, found)

    def _where(self, where: str) -> str:
        return f"trace of plan {self.program.plan.name!r}, rank {self.rank}, {where}"


def require(holds: Bools, law: str, where: Callable[[int], str], *shown: tuple[str, Ints]) -> None:
    """Raise for the first row for which a law does not hold.

    Parameters
    ----------
    holds, law
        By row, whether the law holds; its text.
    where
        Names a row by its index.
    shown
        Columns whose values the message shows, each with its name there.
    """
    if not holds.all():
        i = int(np.argmin(holds))
        raise broken(where(i), law, ", ".join(f"{name} {int(values[i]):,}" for name, values in shown))


def broken(where: str, law: str, found: str) -> InvariantError:
    """Make the error that names the row, the law and the numbers."""
    return InvariantError(where, law, found, "report this: it is a bug of hosim")


class Fault(NamedTuple):
    """A rule that a plan breaks.

    Attributes
    ----------
    kind
        What it is, in the words of whoever writes plans: ``detach before the store``.
    action
        Index of the action to blame; -1 if it is none.
    op, tensor
        Names of the op and the tensor that it is about, or empty.
    error
        Where the plan breaks the rule, the rule, what breaks it, and the remedy.
    """

    kind: str
    action: int
    op: str
    tensor: str
    error: PlanError


Report = Callable[[Fault], None]
"""Takes a fault; if it returns, the walk goes on as if the fault were mended."""


def refuse(fault: Fault) -> None:
    """Raise the error of a fault: the first one ends the walk."""
    raise fault.error


def describe(graph: Graph, tiers: Sequence[str], code: Code) -> str:
    """Return what an action does as text, such as ``copy L03/attn.q.out hbm -> ddr``.

    Parameters
    ----------
    graph
        Its ops and tensors have the names.
    tiers
        Tier names by id.
    code
        The action; ids out of range are shown as numbers.
    """
    kind, a, b, c = code
    ops, tensors = [op.name for op in graph.ops], [tensor.name for tensor in graph.tensors]
    lists = ((ops if kind == COMPUTE else tensors, a), (tiers, b), (tiers, c))
    operand, source, target = (names[i] if 0 <= i < len(names) else str(i) for names, i in lists)
    texts = {
        COMPUTE: f"compute {operand}",
        COPY: f"copy {operand} {source} -> {target}",
        DETACH: f"detach {operand} from {source}",
        SYNC: f"sync {operand}",
    }
    return texts.get(kind, f"kind {kind}")


def among(keys: Ints, ascending: Ints) -> Bools:
    """Flag the keys, none below `NONE`, that are in an ascending array."""
    return np.asarray(np.append(ascending, NONE - 1)[np.searchsorted(ascending, keys)] == keys)


def covered(rows: Stretches, by: Stretches, stride: int, *, joined: bool = False) -> Bools:
    """Flag the rows that lie within one stretch of their key; stretches of a key do not overlap.

    Parameters
    ----------
    rows, by
        Key, start and end of each; positions of the clock.
    stride
        A number above the largest position.
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
