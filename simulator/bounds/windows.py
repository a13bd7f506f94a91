"""The longest path over the ops of a step and the copies between them: what has no room at one op must move by another.

*In.* Let ``a`` and ``c`` be ops of the line, ``a`` before ``c``. Values that existed before ``a``, that ops behind
``a`` and up to ``c`` read, and that ``a`` does not use, are needed between the two. While ``a`` runs, the compute tier
holds what ``a`` uses, its workspace, and what stays there because that is its home. So when ``a`` ends, no more of the
needed values than the rest of the budget holds are in place, or under way into their places. The others, the *lack* of
the window, begin to come in after the end of ``a`` and have come in when ``c`` starts: ``c`` starts no sooner than the
end of ``a`` and the time of the lack on the links into the compute tier.

*Out.* Values that ops from ``a`` on made before ``c``, that are needed after ``c``, and that ``c`` does not use, were
made in the compute tier and are there alone until they are copied out. Those that have no room beside what ``c`` uses
and what stays are copied out after the end of ``a``, when the first of them can have been made, and before ``c``
starts, which takes their room. So ``c`` starts no sooner than the end of ``a`` and the time of these copies on the
links out.

*Whole tensors.* Copies move whole tensors. The values of a window that have no place beside ``a``, or beside ``c``, are
some of those that it counts, and have at least the bytes of the lack together. All of each comes in, or goes out, in
the window; so at least the least sum of sizes of some of them that is no less than the lack. On short chains, where a
window counts few tensors, this is much more than the lack. It is looked for in graphs of up to `_MOST_WHOLE` ops.

*Both.* Values that come in existed before ``a``, values that go out did not: no byte counts twice. Over links that
share the channels of a copy queue, or a bus, both take their time in turn.

*From the start.* Tensors at home elsewhere and first read up to ``c`` come in between the start of the last op of the
step before and the start of ``c`` (see the package). Values that must be out while ``c`` runs, and were made in the
step (or, in a run of one step, are at home here), have left since the step began.

*To the end.* In a run of one step, tensors at home elsewhere that ``a`` or a later op wrote go home after the end of
``a``, and before the run ends.

All of these are edges from the end of an op to the start of another, as is each op between them. The longest path is a
bound: windows that follow each other on it add up. A value counts once in each window, so of several tokens decoded in
one step, a window as long as one token has the lack of one token. Where the path over several ranks begins or ends
elsewhere, leads and tails of `critical_path` say how long it is there; for ranks that are alike, a window is a part of
a path like any other.

*Cuts.* The same holds for the tiers around the compute tier together, with the room of all and the links behind them
(`cuts`): needed values without a place within come in, values made in the compute tier without a place within leave.

*Several streams.* `idle` says which values are needed, and while which ops of the line. A reader beside the line counts
for the first op of the line that surely starts after it; a value made there counts for windows from the last op of the
line on that surely starts no later than its maker.

*Recompute.* An op stands for its first run, and only values count that no op can make again. Over several steps nothing
counts as coming from the start, as the last op to run is not known then.

*Rates* are those of `cuts`. Alike ranks that meet have the same windows, and share buses in each of them.

*Finding it.* From one end ``c`` to the next, the values that are needed from a start ``a`` differ only by those that
are read between the two ends: each of these is idle for a range of starts, from its last use on. So it is with values
that are made. Both are sums over areas of starts and ends. Starts and ends are at most `MOST_POINTS` ops: of each of
equally long stretches of ops, the one with least room, of all ops and of those that lack room. Fewer ops only leave
windows out. Floating point decides which window to take; whole numbers add up how long it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.bounds.critical_path import Timing
from simulator.bounds.cuts import bottlenecks, ns_per_byte, rate_of
from simulator.bounds.idle import Counted, Demand, tightest
from simulator.trace import Ints

Floats = NDArray[np.float64]

MOST_POINTS = 512
"""Most ops between which windows lie: memory and time grow with their square."""

_MOST_WHOLE = 128
"""Most ops of a graph in which whole tensors count: sums of many sizes come close to any lack."""

_ENDLESS = 1 << 62
"""Room without a limit [B]."""

MOST_OPS = 32
"""Most ops at which `Rematerialisation` tries a budget: each takes a search."""

_ERROR = 1e-9
"""Relative error that floating point stays below."""

_CLOSER, _BETWEEN = 8, 64
"""Rounds of the search for the minimum, and times that each round tries between the neighbours of the least."""
_EVENLY = np.arange(_BETWEEN, dtype=float)


class Windows:
    """Windows of a graph, as far as they do not depend on the budget.

    Parameters
    ----------
    timing, demand, sharers
        As for `simulator.bounds.Limits`; what must be held while each op runs.
    """

    def __init__(self, timing: Timing, demand: Demand, sharers: Mapping[str, int]) -> None:
        precedence, graph, moving = timing.precedence, timing.precedence.graph, demand.moving
        self.timing, self.demand = timing, demand
        self.stretches = moving.where(moving.must_stay(precedence)) if demand.may_repeat else moving
        self.line = np.flatnonzero(np.array(precedence.streams, np.int64) == 0)
        # By cut and op: what has come in since the step began when the op starts, and goes home after its end [B].
        is_known = graph.steps == 1 or not (graph.meets or demand.may_repeat)
        enters = {t: op for t, op in demand.enters.items() if is_known and t not in timing.staying}
        self.from_start = np.cumsum(_outside_bytes(demand, enters), axis=1)
        self.to_end = np.cumsum(_outside_bytes(demand, demand.leaves)[:, ::-1], axis=1)[:, ::-1]
        sizes = {tensor.size_bytes for tensor in graph.tensors} - {0}
        self.bottlenecks = bottlenecks(demand.cuts, demand.hardware, sorted(sizes), sharers if graph.meets else {})
        ops, needed = len(graph.ops), self.stretches
        most = np.maximum(needed.where(needed.due < ops).bytes_at(ops), needed.where(needed.made >= 0).bytes_at(ops))
        self._most = demand.held + most
        self.back = dict[int, tuple[int, str]]()  # op -> least time of what goes home after it [ns], and by which way

    def longest(self, budget_bytes: int | float, share: int = 1) -> tuple[int, str]:
        """Return the length of the longest path under a budget [B] [ns], and a text that says what it is made of.

        Parameters
        ----------
        budget_bytes
            The budget [B].
        share
            How many times fewer ops windows lie between: a path over some of them is no longer.
        """
        points = self._points(budget_bytes, MOST_POINTS // share)
        return _Sweep(self, points, budget_bytes).run() if len(points) else (0, "")

    def _points(self, budget_bytes: int | float, most: int) -> Ints:
        """Choose at most so many ops for windows; none if no op lacks room, and nothing comes in or goes home."""
        short = self.line[self._most[self.line] > budget_bytes]
        if not len(self.line) or not (len(short) or self.from_start.any() or self.to_end.any()):
            return self.line[:0]
        parts = (tightest(ops, self._most, most // 2) for ops in (short, self.line))
        return np.unique(np.concatenate([*parts, self.line[-1:]]))


def _outside_bytes(demand: Demand, op_of: Mapping[int, int]) -> Ints:
    """Return, by cut and op, the size of the tensors of that op whose home is outside the cut [B]."""
    graph = demand.precedence.graph
    size_bytes, ops = np.zeros((len(demand.cuts), len(graph.ops) + 1), np.int64), np.array([*op_of.values()], np.int64)
    sizes = np.array([graph.tensors[t].size_bytes for t in op_of], np.int64)
    homes = np.array([demand.homes[t] for t in op_of], np.int64)
    for of_cut, cut in zip(size_bytes, demand.cuts, strict=True):
        np.add.at(of_cut, ops, sizes * ~np.isin(homes, [*cut.tiers]))
    return size_bytes[:, :-1]


class _Edge(NamedTuple):
    """Last edge of the longest path to the start of an op.

    Attributes
    ----------
    ns
        Time since the window of the step began [ns].
    start
        Index of the point that it comes from; -1 if from the beginning.
    short
        The op that has no room; -1 if none.
    enters
        Link that brings what is at home elsewhere; empty if none does.
    """

    ns: int
    start: int = -1
    short: int = -1
    enters: str = ""


class _Sweep:
    """Sweep over the ends of windows.

    Parameters
    ----------
    windows
        Windows of the graph.
    points
        Ops between which windows lie.
    budget_bytes
        Budget of the compute tier [B].
    """

    def __init__(self, windows: Windows, points: Ints, budget_bytes: int | float) -> None:
        timing, demand, idle, count = windows.timing, windows.demand, windows.stretches, len(points)
        self._timing, self._bottlenecks = timing, windows.bottlenecks
        self._to_end, self._back = windows.to_end, windows.back
        self._points: list[int] = points.tolist()
        self._rooms = rooms = [int(min(budget_bytes + cut.room_bytes, _ENDLESS)) for cut in demand.cuts]
        held, works = demand.held[points], demand.work[points]
        left = [np.maximum(works + made[points] - room, 0) for made, room in zip(demand.made_in, rooms, strict=True)]
        self._left_bytes: list[list[int]] = np.array(left).tolist()
        self._entered_bytes: list[list[int]] = windows.from_start[:, points].tolist()
        self._before_ns = timing.last_ns + timing.shorter_ns if timing.precedence.graph.steps > 1 else 0
        in_line = np.where(np.array(timing.precedence.streams) == 0, timing.durations_ns, 0)
        self._clock: list[int] = np.cumsum(in_line)[points].tolist()
        first = np.searchsorted(points, idle.first)
        behind = np.maximum(first, np.searchsorted(points, idle.last, "right"))
        due = np.where(idle.due < len(in_line), np.searchsorted(points, idle.due), count)
        made, final = np.searchsorted(points, idle.made, "right"), np.full_like(due, count)
        # By start and end: what must have come in if it has no place beside the start, and be out beside the end [B].
        is_whole, never = len(in_line) <= _MOST_WHOLE, np.zeros_like(made)
        self._comes = Counted(held[:, None], idle.size, (first, behind), (due, final), is_whole=is_whole)
        self._leaves = Counted(held[None, :], idle.size, (never, made), (first, behind), is_whole=is_whole)
        self._about_ns = np.zeros((count, count))
        for neck in self._bottlenecks:
            ways = (self._comes, neck.into), (self._leaves, neck.out_of)
            parts = [counted.least(self._rooms[neck.cut]) * neck.about(rate) for counted, rate in ways if rate]
            if parts:
                np.maximum(self._about_ns, sum(parts[1:], parts[0]), out=self._about_ns)
        self._most_ns: list[float] = np.triu(self._about_ns, 1).max(axis=0, initial=0).tolist()
        self._edges: list[_Edge] = []
        self._ends_ns: list[int] = []
        self._about_ends = np.zeros(count)

    def run(self) -> tuple[int, str]:
        """Find the longest path."""
        timing, best, ops = self._timing, (0, -1, ""), self._timing.precedence.graph.ops
        for end, op in enumerate(self._points):
            edge = max(self._along_line(end), self._from_start(end))
            edge = max(edge, self._window(end)) if self._most_ns[end] else edge
            self._edges.append(edge)
            self._ends_ns.append(edge.ns + timing.durations_ns[op])
            self._about_ends[end] = self._ends_ns[end]
            if op not in self._back:
                going = ((neck.ns(0, int(self._to_end[neck.cut, op])), neck.name) for neck in self._bottlenecks)
                self._back[op] = max(going)
            back_ns, name = self._back[op]
            ns = self._ends_ns[end] + max(timing.tails_ns[op], back_ns)
            if ns > best[0]:
                best = ns, end, f"{name} after {ops[op].name}" if back_ns > timing.tails_ns[op] else ""
        return best[0], self._path_text(*best[1:])

    def _along_line(self, end: int) -> _Edge:
        """Return the path from the point before, or that of `critical_path`."""
        op = self._points[end]
        lead = _Edge(self._timing.leads_ns[op])
        if not end:
            return lead
        between = self._clock[end] - self._timing.durations_ns[op] - self._clock[end - 1]
        return max(lead, _Edge(self._ends_ns[end - 1] + between, end - 1))

    def _from_start(self, end: int) -> _Edge:
        """Return the path along what has come in, or left, since the start of the step."""
        best = _Edge(-1)
        for neck in self._bottlenecks:
            entered = self._entered_bytes[neck.cut][end] if neck.into else 0
            left = self._left_bytes[neck.cut][end] if neck.out_of else 0
            if entered or left:
                ns = neck.ns(entered, left) - (self._before_ns if entered else 0)
                best = max(best, _Edge(ns, -1, self._points[end] if left else -1, neck.name if entered else ""))
        return best

    def _window(self, end: int) -> _Edge:
        """Return the window to this end whose copies last longest."""
        best, about_ns = _Edge(-1), self._about_ns[:end, end]
        start = int((self._about_ends[:end] + about_ns).argmax()) if end else 0
        for neck in self._bottlenecks if end and about_ns[start] else ():
            room = self._rooms[neck.cut]
            in_bytes = self._comes.moved(start, end, room) if neck.into else 0
            out_bytes = self._leaves.moved(start, end, room) if neck.out_of else 0
            short = self._points[start if in_bytes else end]
            best = max(best, _Edge(self._ends_ns[start] + neck.ns(in_bytes, out_bytes), start, short))
        return best

    def _path_text(self, last: int, left: str) -> str:
        """Say what the path to a point is made of, from its end."""
        ops, short, entered = self._timing.precedence.graph.ops, set[int](), ""
        while last >= 0:
            edge = self._edges[last]
            short.update({edge.short} - {-1})
            if edge.enters:
                entered = f"{edge.enters} before {ops[self._points[last]].name}"
            last = edge.start
        where = f"{len(short)} ops" if len(short) != 1 else ops[min(short)].name
        return ", ".join(filter(None, (entered, f"room at {where}" if short else "", left)))


class Rematerialisation:
    """Bound plans that may run ops again: what has no room at an op is copied, or it is made again.

    Let ``k`` be an op of the line, in its first run. What is needed later, what ``k`` uses, its workspace, and what
    stays have ``x`` bytes more than the budget: of the values that are needed, ``x`` bytes have no place when ``k``
    starts, nor when it ends. If a first run reads such a value later, or it has to be there at the end, then either
    the op that made it runs again after ``k`` has started, or the value is valid elsewhere. In the latter case it
    was copied out before ``k`` started, if an op of this step made it; and if it is read, it comes in after ``k``
    has ended.

    Let ``r`` be the time that ops of the line take which run again after ``k`` has started, each counted once. The
    line runs one op at a time, so that from the end of ``k`` to that of the step at least ``r`` passes and all
    first runs behind ``k``. These ops make at most ``s(r)`` of the bytes that lie idle at ``k``: as much as if
    parts of ops could run, those first that make most bytes per time. What ops beside the line make counts as made
    in no time. So the step takes at least

        max(lead of k, (x - s(r)) / w_out) + k + max(tail of k, line behind k + r, (x - s(r)) / w_in + the last op)

    for some ``r``; the copy out counts only values made in the step, the copy in only those that are read. ``s`` is
    concave, so that this is convex in ``r``; its minimum is found in floating point, and rounded down by more than
    the error of that. Ops that take less time for a byte than a link run again first; the minimum lies where both
    take equally long, or where nothing is left to copy.

    The ops that are tried are those with least room in stretches of the line.

    Parameters
    ----------
    timing, demand
        As for `simulator.bounds.Limits`; what must be held while each op runs.
    """

    def __init__(self, timing: Timing, demand: Demand) -> None:
        graph, cut = timing.precedence.graph, demand.cuts[0]
        self._timing, self._moving = timing, demand.moving
        self._in_line = np.array(timing.precedence.streams, np.int64) == 0
        self._took = np.where(self._in_line, timing.durations_ns, 0).astype(float)
        self._behind = np.cumsum(self._took[::-1])[::-1] - self._took
        self._repeatable = np.array([op.repeatable for op in graph.ops], bool)
        self._held, self._needed = demand.held, demand.held + self._moving.bytes_at(len(graph.ops))
        sizes = sorted({tensor.size_bytes for tensor in graph.tensors} - {0})
        rates = (rate_of(names, demand.hardware, sizes) for names in (cut.into, cut.out_of))
        self._in_ns, self._out_ns = map(ns_per_byte, rates)

    def longest(self, budget_bytes: int | float, share: int = 1) -> tuple[int, str]:
        """Return the least time of a step at the op at which a budget [B] costs most [ns], and its name in a bound."""
        short = np.flatnonzero(self._in_line & (self._needed > budget_bytes))
        tried, best = tightest(short, self._needed, MOST_OPS // share), (0, 0)
        for k in tried[np.argsort(-self._needed[tried], kind="stable")].tolist():
            best = max(best, (self._least_ns(k, budget_bytes, best[0]), k))
        return best[0], f"room or recompute at {self._timing.precedence.graph.ops[best[1]].name}"

    def _least_ns(self, k: int, budget_bytes: int | float, other_ns: int) -> int:
        """Return the least time of the step if what has no place at an op is copied, or made again [ns].

        If that is less than at another op, return any time between: no more is asked.
        """
        timing, idle, ops = self._timing, self._moving, len(self._took)
        idle_at_k = idle.where((idle.first <= k) & (k <= idle.last))
        beyond, is_made = float(self._held[k] - budget_bytes), idle_at_k.made >= 0
        out_bytes = beyond + float(idle_at_k.size[is_made].sum())
        in_bytes = beyond + float(idle_at_k.size[idle_at_k.due < ops].sum())
        made = np.bincount(idle_at_k.maker[is_made], idle_at_k.size[is_made], ops)
        reruns = np.flatnonzero(self._repeatable & (made > 0))
        at_once, reruns = reruns[self._took[reruns] == 0], reruns[self._took[reruns] > 0]
        reruns = reruns[np.argsort(self._took[reruns] / made[reruns], kind="stable")]
        all_made, times = np.cumsum([made[at_once].sum(), *made[reruns]]), np.cumsum([0.0, *self._took[reruns]])

        def step_ns(again_ns: Floats) -> Floats:
            left = np.interp(again_ns, times, all_made)
            out_ns, in_ns = np.maximum(out_bytes - left, 0) * self._out_ns, np.maximum(in_bytes - left, 0) * self._in_ns
            copied_ns = np.where(in_ns > 0, in_ns + timing.last_ns, 0)
            behind_ns = np.maximum(np.maximum(self._behind[k] + again_ns, timing.tails_ns[k]), copied_ns)
            return np.asarray(np.maximum(out_ns, timing.leads_ns[k]) + timing.durations_ns[k] + behind_ns)

        around_ns = times
        for _ in range(_CLOSER):
            took_ns = step_ns(around_ns)
            i = int(took_ns.argmin())
            if (about_ns := int(took_ns[i] * (1 - _ERROR)) - 2) < other_ns - 1:
                return about_ns
            low_ns, high_ns = around_ns[max(0, i - 1)], around_ns[min(len(around_ns) - 1, i + 1)]
            around_ns = _EVENLY * ((high_ns - low_ns) / (_BETWEEN - 1)) + low_ns  # as `linspace`, which takes longer
            around_ns[-1] = high_ns
        return int(step_ns(around_ns).min() * (1 - _ERROR)) - 2
