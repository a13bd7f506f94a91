"""Fused groups: policies decide about a graph in which each group is one op, and their plans are written out again.

So no policy can issue anything between two ops of a group, whatever it does. The op that stands for a group
(`simulator.lifetime.launched`) takes as long as its ops in sum. In issue order a plan then holds all that the group
uses at once: nothing leaves in it.

The machine knows no groups: it runs op by op, and what is detached behind a group is free as soon as its last user has
ended. So a plan never holds more than was planned for, and what no plan can beat or fit stays as it is without groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simulator.graph import Graph
from simulator.lifetime import launched, lifetimes
from simulator.plan import COMPUTE, Code, Plan, Steps, View
from simulator.policies.problem import Problem, Replay
from simulator.trace import SPANS, WAITS, Table, Trace

_KIND, _ITEM, _ISSUE, _START, _END = map(SPANS.index, ("kind", "item", "issue", "start_ns", "end_ns"))
_WAITED = WAITS.index("op")


@dataclass(frozen=True)
class Contracted:
    """A problem in which each fused group is one op, and the way back.

    Attributes
    ----------
    problem
        The problem.
    members, streams
        The original ops that each of its ops stands for, and the streams that those run on.
    """

    problem: Problem
    members: tuple[range, ...]
    streams: tuple[int, ...]

    def written_out(self, plan: Plan) -> Plan:
        """Return a plan for the contracted graph as one for the original graph."""
        if len(self.members) == len(self.streams):
            return plan
        if isinstance(plan.steps, Steps):
            steps = Steps()
            for code in _written_out(plan.steps.codes(), self.members, self.streams):
                steps.append(*code)
            return replace(plan, steps=steps)
        return replace(plan, steps=partial(_issued, plan.steps, self.members, self.streams))


def contract(problem: Problem) -> Contracted:
    """Make one op of each fused group; a problem without any stays as it is.

    Parameters
    ----------
    problem
        What to plan for.
    """
    graph, members = problem.graph, problem.graph.launches
    if not any(op.fused for op in graph.ops):
        return Contracted(problem, members, problem.streams)
    durations = [sum(problem.durations_ns[i] for i in group) for group in members]
    contracted = launched(graph)
    new = replace(
        problem,
        graph=contracted,
        durations_ns=durations,
        lifetimes=lifetimes(contracted),
        replay=lambda plan: _replay(problem, Contracted(new, members, problem.streams), plan),
    )
    return Contracted(new, members, problem.streams)


def has_fused(graph: Graph) -> bool:
    """Whether an op of a contracted graph stands for several."""
    return any(op.fused for op in graph.ops)


def _written_out(codes: Iterator[Code], members: Sequence[range], streams: Sequence[int]) -> Iterator[Code]:
    for kind, a, b, c in codes:
        if kind == COMPUTE:
            for op in members[a]:
                yield kind, op, streams[op], 0
        else:
            yield kind, a, b, c


def _issued(
    steps: Callable[[View], Iterator[Code]], members: Sequence[range], streams: Sequence[int], view: View
) -> Iterator[Code]:
    """Let a runtime issue what its steps stand for."""
    return _written_out(steps(view), members, streams)


def _replay(original: Problem, contracted: Contracted, plan: Plan) -> Replay:
    """Try a plan for the contracted graph, and tell what happened in its terms."""
    found = original.replay(contracted.written_out(plan))
    if found.trace is None or plan.fixed is None:
        return replace(found, trace=None)
    members = contracted.members
    spans, waits = _spans(found.trace, plan.fixed, members), _waits(found.trace, members)
    return replace(found, trace=replace(found.trace, spans=spans, waits=waits))


def _spans(trace: Trace, steps: Steps, members: Sequence[range]) -> Table:
    """The spans with one for each group, from the start of its first op to the end of its last."""
    runs = [len(members[a]) if kind == COMPUTE else 1 for kind, a, _, _ in steps.codes()]
    position = np.repeat(np.arange(len(runs)), runs)
    number = _numbers(members)
    rows = np.column_stack(list(trace.spans.whole().values()))
    lap, at = np.divmod(rows[:, _ISSUE], len(position))
    rows[:, _ISSUE] = lap * len(runs) + position[at]
    is_compute = rows[:, _KIND] == COMPUTE
    rows[is_compute, _ITEM] = number[rows[is_compute, _ITEM]]
    rows = rows[np.lexsort((rows[:, _START], rows[:, _ISSUE]))]
    first = np.flatnonzero(np.diff(rows[:, _ISSUE], prepend=-1))
    merged = rows[first]
    if len(first):
        merged[:, _END] = np.maximum.reduceat(rows[:, _END], first)
    table = Table(SPANS)
    table.append(np.ascontiguousarray(merged).tobytes())
    return table


def _waits(trace: Trace, members: Sequence[range]) -> Table:
    """The waits, each of the group that waited."""
    rows = np.column_stack(list(trace.waits.whole().values()))
    rows[:, _WAITED] = _numbers(members)[rows[:, _WAITED]]
    table = Table(WAITS)
    table.append(np.ascontiguousarray(rows).tobytes())
    return table


def _numbers(members: Sequence[range]) -> NDArray[np.int64]:
    """By op, the group that it is in."""
    return np.repeat(np.arange(len(members)), [len(group) for group in members])
