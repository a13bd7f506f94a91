"""The longest path through a step: when an op starts at the earliest, and how much comes after it at least.

*Happens before.* An op starts after the end of the one before it on its stream, and of those that write what it reads
or use what it writes (`precedence`). A collective starts when all its members have come to it, and takes at least its
time alone: so for each member all that comes before its own part comes before the whole, and the whole before what
comes after it. Each op takes at least its time alone. So whatever a plan decides, no op starts sooner after another
than the longest path between them.

*The window of a step.* Let ``E_s`` be the end of the last op of the *line* (stream 0) in step ``s``. In a run of
several steps the step time is ``E_n - E_(n-1)`` of the slowest rank. The window of a rank begins with that op of the
step before, whose duration does not count, and ends with that op of the step. All that is later in the line is on a
path from the first, as is all that follows from it, also what is left of the step before. What is not on such a path
may have happened earlier, so that nothing is known of its *head*, and what leads to no end may happen later, so that
nothing is known of its *tail*. In a run of one step the window is the whole run: it begins with time 0 and ends with
the last end of all.

*Ranks that are alike* (`ranks`) count as one. A path from one of them may come back to another one. But each meets as
many as each other does, so that the ways from where the path starts to where it ends, counted as often as there are
some, leave every rank and reach every rank equally often, and a part of them leaves and reaches each exactly once
(a regular bipartite graph has a perfect matching). Along these, ``E_n`` of the one less ``E_(n-1)`` of the other is at
least the path. In their sum over all ranks that are alike each step is counted once: its mean, and so its largest, is
at least the path. The same holds of a path through an op and of what else that op's rank adds before or after it.

If ops run again, the last to end in the line may be one that runs again. Then what is left of the step before leads to
nothing: only what comes later in the line surely comes after ``E_(n-1)``. Everything else stands for the first runs.

The network of ops is gone through in an order in which each comes after all that it follows, once for each kind of
rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

from simulator.bounds.precedence import Precedence

UNKNOWN = -(1 << 60)
"""In place of a time of which nothing is known; so is any that is not much larger."""

Part = tuple[int, int]
"""A kind of rank, and one of its ops."""


@dataclass(frozen=True)
class Timing:
    """What no plan changes about when the ops of a graph run.

    Attributes
    ----------
    precedence
        What happens before what.
    durations_ns
        Time of each op alone [ns].
    heads_ns
        By op, from the start of the window to its start at least [ns]; about `UNKNOWN` if it may be anywhen.
    tails_ns
        By op, from its end to the end of the window at least [ns]; about `UNKNOWN` if it may be anywhen.
    path_ns
        Longest path of a step [ns].
    shorter_ns
        How much less the last op of the line may take than in the step before [ns]; of late reads, see `step_time`.
    outlasting
        Tensors of which copies may outlast a step, because late reads may choose them, if the graph does not say so.
    """

    precedence: Precedence
    durations_ns: Sequence[int]
    heads_ns: Sequence[int]
    tails_ns: Sequence[int]
    path_ns: int
    shorter_ns: int = 0
    outlasting: frozenset[int] = frozenset()

    @property
    def staying(self) -> frozenset[int]:
        """Tensors of which a copy may be there from the step before."""
        graph = self.precedence.graph
        return self.outlasting | graph.cacheable if graph.steps > 1 else frozenset()

    @property
    def last_ns(self) -> int:
        """Time of the last op of the line [ns]."""
        return self.durations_ns[self.precedence.last] if self.precedence.last >= 0 else 0

    @classmethod
    def alone(cls, precedence: Precedence, durations_ns: Sequence[int], *, may_repeat: bool = False) -> Timing:
        """Find that of one rank whose collectives never wait for others.

        Parameters
        ----------
        precedence, durations_ns
            What happens before what; time of each op alone [ns].
        may_repeat
            Whether ops may run again.
        """
        if precedence.in_line:
            ends = list(accumulate(durations_ns))
            total = ends[-1] if ends else 0
            heads = [end - took for end, took in zip(ends, durations_ns, strict=True)]
            return cls(precedence, durations_ns, heads, [total - end for end in ends], total)
        return Network([(precedence, durations_ns)], {}, may_repeat=may_repeat).timings()[0]


class Network:
    """The ops of all kinds of ranks that meet, in the measured step and the one before.

    Parameters
    ----------
    kinds
        For each kind of rank what happens before what, and the time of each op alone [ns].
    meetings
        Op by op of each kind: all parts of the collective that it is a part of. A collective without an entry meets
        nobody else.
    may_repeat
        Whether ops may run again.
    """

    def __init__(
        self,
        kinds: Sequence[tuple[Precedence, Sequence[int]]],
        meetings: Mapping[Part, Sequence[Part]],
        *,
        may_repeat: bool = False,
    ) -> None:
        self._kinds, self._may_repeat = kinds, may_repeat
        ops = [len(durations_ns) * (1 + (precedence.graph.steps > 1)) for precedence, durations_ns in kinds]
        self._first = list(accumulate(ops, initial=0))
        self._node = list(range(self._first[-1]))
        for part, parts in meetings.items():
            for earlier in (True, False):
                self._node[self._at(*part, earlier=earlier)] = min(self._at(*p, earlier=earlier) for p in parts)
        self._after: list[list[int]] = [[] for _ in self._node]
        self._opened_by: dict[int, list[int]] = {}
        self._took_ns = [0] * len(self._node)
        for kind in range(len(kinds)):
            self._tie(kind)
        is_sorted = all(at == node for at, node in enumerate(self._node))
        self._sorted: Sequence[int] = range(len(self._node)) if is_sorted else self._in_order()

    def _at(self, kind: int, op: int, *, earlier: bool = False) -> int:
        """Number of an op in the measured step, or in the one before if there is one."""
        precedence, durations_ns = self._kinds[kind]
        is_second = precedence.graph.steps > 1 and not earlier
        return self._first[kind] + op + len(durations_ns) * is_second

    def _tie(self, kind: int) -> None:
        """Tie the ops of a kind of rank to what they come after, in the same step and in the one before."""
        precedence, durations_ns = self._kinds[kind]
        first, second = self._at(kind, 0, earlier=True), self._at(kind, 0)
        for base in sorted({first, second}):
            self._took_ns[base : base + len(durations_ns)] = durations_ns
            self._put(base, base, dict(enumerate(precedence.within)), precedence.opened[0])
        if second > first:
            self._put(second, first, precedence.across, precedence.opened[1])

    def _put(self, base: int, earlier: int, after: Mapping[int, Sequence[int]], opened: Mapping[int, int]) -> None:
        """Let ops that count from one base come after the end, or the start, of ops that count from another."""
        node = self._node
        for op, others in after.items():
            self._after[node[base + op]] += [node[earlier + p] for p in others]
        for op, p in opened.items():
            self._opened_by.setdefault(node[base + op], []).append(node[earlier + p])

    def _in_order(self) -> list[int]:
        """All nodes, each after those that it comes after; what waits for itself, and all behind it, is left out."""
        missing = [0] * len(self._after)
        following: list[list[int]] = [[] for _ in self._after]
        for node, earlier in chain(enumerate(self._after), self._opened_by.items()):
            missing[node] += len(earlier)
            for p in earlier:
                following[p].append(node)
        in_order = [node for node, count in enumerate(missing) if not count]
        for node in in_order:  # it grows meanwhile
            for later in following[node]:
                missing[later] -= 1
                if not missing[later]:
                    in_order.append(later)
        return in_order

    def timings(self) -> list[Timing]:
        """When the ops of each kind of rank may run."""
        return [self._timing(kind) for kind in range(len(self._kinds))]

    def _timing(self, kind: int) -> Timing:
        precedence, durations_ns = self._kinds[kind]
        ends, tails = self._window(kind) if precedence.graph.steps > 1 else self._whole
        nodes = [self._node[self._at(kind, op)] for op in range(len(durations_ns))]
        heads = [ends[at] - self._took_ns[at] for at in nodes]
        if precedence.graph.steps == 1:
            path = max(ends, default=0)
        else:
            path = max(0, ends[nodes[precedence.last]]) if precedence.last >= 0 else 0
        return Timing(precedence, durations_ns, heads, [tails[at] for at in nodes], path)

    @cached_property
    def _whole(self) -> tuple[list[int], list[int]]:
        """The longest paths from time 0 and to any end."""
        return self._ends(self._took_ns.copy()), self._tails([0] * len(self._node))

    def _window(self, kind: int) -> tuple[list[int], list[int]]:
        """The longest paths from the start and to the end of the window of a kind of rank."""
        precedence, durations_ns = self._kinds[kind]
        ends, tails = ([UNKNOWN] * len(self._node) for _ in range(2))
        if precedence.last < 0:
            return ends, tails
        if self._may_repeat:
            first = self._at(kind, precedence.streams.index(0))
            ends[self._node[first]] = durations_ns[precedence.streams.index(0)]
        else:
            ends[self._node[self._at(kind, precedence.last, earlier=True)]] = 0
        tails[self._node[self._at(kind, precedence.last)]] = 0
        return self._ends(ends), self._tails(tails)

    def _ends(self, ends: list[int]) -> list[int]:
        """By node, the longest path to its end; what is given is where paths start."""
        took_ns, after, opened_by = self._took_ns, self._after, self._opened_by
        for at in self._sorted:
            since = max([ends[p] for p in after[at]], default=UNKNOWN)
            if at in opened_by:
                since = max(since, *[ends[p] - took_ns[p] for p in opened_by[at]])
            ends[at] = max(ends[at], since + took_ns[at])
        return ends

    def _tails(self, tails: list[int]) -> list[int]:
        """By node, the longest path from its end; what is given is where paths end."""
        took_ns, after, opened_by = self._took_ns, self._after, self._opened_by
        for at in reversed(self._sorted):
            whole = tails[at] + took_ns[at]
            for p in after[at]:
                tails[p] = max(tails[p], whole)
            for p in opened_by.get(at, ()):
                tails[p] = max(tails[p], whole - took_ns[p])
        return tails
