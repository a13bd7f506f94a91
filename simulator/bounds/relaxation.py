"""A lower bound on the step time by linear relaxation: what leaves, when, and over which link, in fractions.

Premises and the window of a step are those of `step_time`: it starts at time 0 and ends with the makespan in a run of
one step, else it lies between the starts of the last op in two steps. What follows holds for every plan; the program
asks for less than a plan has to do, so that its minimum is a bound.

*Grid.* Some ops are *checkpoints*. The grid has the window's start, each checkpoint's start and end, and the window's
end. Between two points lie computes of known length and a stall, which is not negative. The step is the sum of all
lengths; computes are known, so the stalls are minimised.

*Stretches.* A value that is needed but not used by the ops between `after` and `before` (see `idle`) may be absent at
the checkpoints among them: its place in the compute tier is not held. Let ``Z`` be the absent bytes of a stretch at a
grid point. While a checkpoint runs, its working set, what stays because it is at home there, and what is not absent
fit the budget, at its start and just before its end.

*Out.* If an op ``w`` of this step made the value, and it is absent at time ``t``, then a copy out of it has run between
the end of ``w`` and ``t``: the compute tier had the only place. Let ``O`` be how much of the first such copy is done at
a point: it grows, is 0 at the end of ``w``, and ``Z <= O``. A version needs one copy out however often it leaves, so
that only its longest stretch is held to this; a version that must go home (a run of one step) has it all out at the
end of the window.

*In.* If the value is read by `before` and is absent at ``t``, then a copy in runs between ``t`` and the start of
`before`: room is taken at a copy's start. Let ``R`` be how much of the last such copy is still to come: it falls, is 0
from the start of `before` on, and ``Z <= R``; where *out* applies, what has come in is at most what has gone out. What
is at home elsewhere and read first comes in after the window has started (see `step_time`), all of it.

*Links.* Between two points, a direction's only link with one channel is busy for at most the time between them, and a
copy takes it for no less than its time alone; *done* then counts the time of a copy that has passed. Two such links
that share a queue take turns. Over several links or channels, bytes are at most the sum of their bandwidths times the
time, and *done* counts bytes. A bus over both directions carries no more than its bandwidth over the whole window.

*Coarsening.* Leaving checkpoints out leaves conditions out. A value made, needed or due between two checkpoints counts
from the grid point before, or until the one after, which gives it more time. Stretches that agree in all grid points
become one with the sum of their bytes, and the least time per byte among them: the sum of their solutions is one of it.
Each of the three only asks for less. The number of checkpoints is halved until there are at most `MOST_VARIABLES`
variables, so that the size of the program does not grow with that of the graph.

*Recompute.* As in `step_time`: an op is its first run in a step, and what can be made again may be absent at no cost.

The minimum itself is taken by weak duality in whole numbers (see `linear`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.bounds.coarse import (
    NS_PER_S,
    ONE,
    Class,
    Direction,
    Grid,
    Sum,
    classes_of,
    make_grid,
    take_turns,
    variables_of,
)
from simulator.bounds.idle import Idle
from simulator.bounds.linear import LinearProgram, Term
from simulator.bounds.needs import Need
from simulator.graph import Graph
from simulator.hardware import Hardware

MOST_VARIABLES = 12_000
"""Size of the program: seconds for the solver."""

MOST_CHECKPOINTS = 128
"""Where the halving starts."""

Line = tuple[list[Term], int]
"""A sum of terms and a constant."""


def relaxed_step_ns(
    graph: Graph, hardware: Hardware, durations_ns: Sequence[int], idle: Idle, needed: Sequence[Need], budget: int
) -> int:
    """Find a lower bound on the step time [ns], at least the sum of the durations.

    Parameters
    ----------
    graph, hardware, durations_ns
        As for `bound`.
    idle, needed
        Of that graph.
    budget
        What may be used of the compute tier [B].

    Raises
    ------
    ConfigError
        If scipy, the extra ``hosim[solve]``, is not installed.
    """
    builder = _coarsened(graph, hardware, durations_ns, idle, needed)
    builder.minimise_stalls()
    builder.fit(idle.work + idle.stays, ([], budget))
    return builder.bound(sum(durations_ns))


def relaxed_peak_bytes(
    graph: Graph, hardware: Hardware, durations_ns: Sequence[int], idle: Idle, needed: Sequence[Need], step_ns: int
) -> int:
    """Find a lower bound on the peak in the compute tier of a step that takes at most `step_ns` [B].

    The same program, with the budget as what is minimised and the stalls as what is given. Parameters and errors as
    for `relaxed_step_ns`.
    """
    stall_ns = max(0, step_ns - sum(durations_ns))
    builder = _coarsened(graph, hardware, durations_ns, idle, needed)
    peak = builder.minimise_peak(int((idle.work + idle.all).max()), stall_ns)
    builder.fit(idle.work + idle.stays, peak)
    return builder.bound(0)


def _coarsened(
    graph: Graph, hardware: Hardware, durations_ns: Sequence[int], idle: Idle, needed: Sequence[Need]
) -> _Builder:
    """The program without its objective, with as many checkpoints as its size allows."""
    count = min(len(graph.ops), MOST_CHECKPOINTS)
    while True:
        grid = make_grid(graph, durations_ns, idle, count)
        classes = classes_of(needed, grid, hardware)
        if count == 1 or sum(map(variables_of, classes)) <= MOST_VARIABLES:
            break
        count //= 2
    builder = _Builder(grid, classes, sum(durations_ns))
    builder.carry(hardware)
    builder.share(hardware)
    return builder


class _Builder:
    """Writes the program.

    Parameters
    ----------
    grid, classes
        What moves, and when it can.
    compute_ns
        Sum of the durations [ns].
    """

    def __init__(self, grid: Grid, classes: list[tuple[Class, Sum]], compute_ns: int) -> None:
        self._grid, self._classes, self._program = grid, classes, LinearProgram()
        copies_ns = sum(s.size_bytes * (s.out_rate + s.in_rate) for _, s in classes) // ONE
        self._most = self._most_ns = compute_ns + copies_ns + 1
        self._stalls = [self._program.variable(self._most_ns) for _ in grid.lengths_ns]
        self._outs = [self._out(*item) for item in classes]
        self._ins = [self._in(*item) for item in classes]
        for out, come, (c, _) in zip(self._outs, self._ins, classes, strict=True):
            self._follow(c, out, come)

    def minimise_stalls(self) -> None:
        """Let the objective be the sum of all stalls."""
        for stall in self._stalls:
            self._program.charge(stall)
        self._most = self._most_ns

    def minimise_peak(self, most_bytes: int, stall_ns: int) -> Line:
        """Let the objective be the budget, for at most so much stall; return it."""
        peak = self._program.variable(most_bytes)
        self._program.charge(peak)
        self._program.at_least([(-1, stall) for stall in self._stalls], -stall_ns)
        for stall in self._stalls:
            self._program.widen(stall, stall_ns)
        self._most = most_bytes
        return [(1, peak)], 0

    def bound(self, more: int) -> int:
        """A lower bound on the objective, and what is known to come on top of it.

        It is no more than the bound of a single variable of the objective, so that it holds for what exceeds that too.
        """
        return more + min(self._program.bound(), self._most)

    def _out(self, c: Class, s: Sum) -> dict[int, Line]:
        """Point -> what has gone out, which grows."""
        if c.out_from is None:
            return {}
        is_forced = c.always and c.in_by is None
        last = self._grid.end if is_forced else c.last
        line: dict[int, Line] = {c.out_from: ([], 0)}
        for n in range(c.out_from + 1, last + 1):
            line[n] = ([], s.size_bytes) if is_forced and n == last else self._variable(s.size_bytes)
        self._grow([line[n] for n in sorted(line)])
        return line

    def _in(self, c: Class, s: Sum) -> dict[int, Line]:
        """Point -> what has still to come in, which falls."""
        if c.in_from is None or c.in_by is None:
            return {}
        line: dict[int, Line] = {}
        for n in range(c.in_from, c.in_by):
            line[n] = ([], s.size_bytes) if c.always and n == c.in_from else self._variable(s.size_bytes)
        line[c.in_by] = ([], 0)
        self._grow([line[n] for n in sorted(line, reverse=True)])
        return line

    def _variable(self, size_bytes: int) -> Line:
        return [(1, self._program.variable(size_bytes))], 0

    def _at_least(self, *lines: tuple[int, Line]) -> None:
        """A row: the sum of lines, each times a factor, is at least 0."""
        merged: dict[int, int] = {}
        constant = 0
        for factor, (terms, more) in lines:
            constant += factor * more
            for c, v in terms:
                merged[v] = merged.get(v, 0) + factor * c
        if merged:
            self._program.at_least([(c, v) for v, c in merged.items() if c], -constant)

    def _grow(self, lines: Sequence[Line]) -> None:
        for earlier, later in pairwise(lines):
            self._at_least((1, later), (-1, earlier))

    def carry(self, hardware: Hardware) -> None:
        """Between two points each direction carries what fits the time between them; both together, if they share."""
        out = self._rates([s.out_rate for _, s in self._classes], self._outs, sign=1)
        come = self._rates([s.in_rate for _, s in self._classes], self._ins, sign=-1)
        for parts in ((out, come),) if take_turns(hardware) else ((out,), (come,)):
            for n, length_ns in enumerate(self._grid.lengths_ns):
                lines = [line for part in parts for line in part.get(n, ())]
                if lines:
                    self._at_least((1, ([(ONE, self._stalls[n])], ONE * length_ns)), *lines)

    def _rates(
        self, rates: Sequence[int], flows: Sequence[dict[int, Line]], *, sign: int
    ) -> dict[int, list[tuple[int, Line]]]:
        """Point -> what the flows take of the time until the next, negative; `sign` is 1 if the flows grow."""
        by_point: dict[int, list[tuple[int, Line]]] = {}
        for rate, flow in zip(rates, flows, strict=True):
            for n in sorted(flow):
                if rate and n + 1 in flow:
                    by_point.setdefault(n, []).extend([(sign * rate, flow[n]), (-sign * rate, flow[n + 1])])
        return by_point

    def _follow(self, c: Class, out: dict[int, Line], come: dict[int, Line]) -> None:
        """What has come in has gone out before."""
        if out and come and c.in_from is not None:
            for n in range(c.first, c.last + 1):
                self._at_least((1, out[n]), (1, come[n]), (-1, come[c.in_from]))

    def fit(self, fixed_bytes: NDArray[np.int64], budget: Line) -> None:
        """At both ends of each checkpoint, what is not absent fits the budget."""
        for i, k in enumerate(self._grid.checkpoints):
            for n in (2 * i + 1, 2 * i + 2):
                inside = [j for j, (c, _) in enumerate(self._classes) if c.first <= n <= c.last]
                held = int(fixed_bytes[k]) + sum(self._classes[j][1].size_bytes for j in inside)
                if budget[0] or held > budget[1]:
                    self._at_least((1, budget), (-1, ([], held)), *((1, self._absent(j, n)) for j in inside))

    def _absent(self, j: int, n: int) -> Line:
        """What of a class is absent at a point: gone out, and not come in."""
        limits = [flow[n] for flow in (self._outs[j], self._ins[j]) if flow]
        if len(limits) == 1:
            return limits[0]
        absent = self._variable(self._classes[j][1].size_bytes)
        for limit in limits:
            self._at_least((1, limit), (-1, absent))
        return absent

    def share(self, hardware: Hardware) -> None:
        """A bus over all links of both directions carries its bandwidth over the whole window."""
        both = Direction(hardware, "source").names | Direction(hardware, "target").names
        total = [(1, out[max(out)]) for out in self._outs if out]
        total += [(1, come[min(come)]) for come in self._ins if come]
        for bus in hardware.buses.values():
            if both.issubset(hardware.passing(bus.links)) and bus.bandwidth_bytes_per_s != math.inf:
                rate = int(bus.bandwidth_bytes_per_s)
                time = ([(rate, stall) for stall in self._stalls], rate * sum(self._grid.lengths_ns))
                self._at_least((1, time), *((-NS_PER_S * factor, line) for factor, line in total))
