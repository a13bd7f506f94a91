"""Keep, move or recompute: copies and recompute in one plan.

The pass of `recompute` chooses what to make again, under a limit above the budget: it gives up first the tensors that
cost least compute for their bytes. What is still too much is left to copies. The result is written out as a graph of
its own: each repeated run is an op of its own (``name#2``), and a tensor that is made again is a new tensor
(``name#2``). So the compiler plans copies for it as for any other graph, and its plan is translated back action by
action.

The lower the limit, the more compute and the fewer copies. The *lower bound* of the rewritten graph tells what a limit
promises, without a plan: as the limit falls, the sum of the ops rises and the time of the copies falls. The best limit
is where the two meet, which bisection finds.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from simulator.graph import Op
from simulator.lifetime import live_bytes
from simulator.plan import COMPUTE, DETACH, Actions, Plan
from simulator.policies import recompute
from simulator.policies.problem import Problem
from simulator.units import counted, human

LARGEST = 25_000
"""Most ops of a step for which recompute is considered, and of all rewritten graphs that are compiled, unless the first
alone has more: about 10 s of planning."""

_HALVINGS = 4
"""Bisection steps between the budget and the peak of all that is live, to a sixteenth of it: each takes a pass."""


@dataclass(frozen=True)
class Rewritten:
    """A problem in which some ops run again, and how its plans translate back.

    Attributes
    ----------
    problem
        The problem: its graph has an op for each run, and a new tensor each time that one is made again.
    op_of, tensor_of
        Op and tensor of the original graph, by op and tensor of the rewritten one.
    """

    problem: Problem
    op_of: tuple[int, ...]
    tensor_of: tuple[int, ...]

    @property
    def note(self) -> str:
        """Sentence about the reruns."""
        durations_ns = self.problem.durations_ns
        once = dict(zip(self.op_of, durations_ns, strict=True))
        again_ns = sum(durations_ns) - sum(once.values())
        return f"{counted(len(self.op_of) - len(once), 'rerun')} of ops, {human(again_ns, 'ns')} in all"

    def translated(self, plan: Plan) -> Plan:
        """Return a plan for the rewritten graph as one for the original graph, action for action."""
        actions = Actions()
        for kind, a, b, c in plan.fixed or ():
            actions.append(kind, self.op_of[a] if kind == COMPUTE else self.tensor_of[a], b, c)
        originals = max(self.tensor_of, default=-1) + 1
        return replace(plan, actions=actions, home=plan.home[:originals])


def rewrite(problem: Problem, repeated: Plan) -> Rewritten:
    """Turn a plan that runs ops again into a problem of its own.

    An op that reads dynamically reads all candidates there.

    Parameters
    ----------
    problem
        Problem that the plan is for.
    repeated
        A fixed plan without copies.
    """
    graph, runs, remakes, freed = problem.graph, Counter[int](), Counter[int](), set[int]()
    tensors, tensor_of, op_of, ops = list(graph.tensors), list(range(len(graph.tensors))), list[int](), list[Op]()
    holder = list(tensor_of)  # by original tensor, the one that holds its value
    for kind, a, b, _ in repeated.fixed or ():
        if kind == DETACH and b == problem.compute_tier:
            freed.add(a)
        if kind != COMPUTE:
            continue
        op, reads = graph.ops[a], tuple([holder[t] for t in graph.ops[a].reads])
        for tensor in freed.intersection(op.writes):
            freed.remove(tensor)
            original = graph.tensors[tensor]
            if not original.persistent:
                remakes[tensor] += 1
                holder[tensor] = len(tensors)
                tensor_of.append(tensor)
                tensors.append(replace(original, name=f"{original.name}#{remakes[tensor] + 1}"))
        runs[a] += 1
        name, writes = f"{op.name}#{runs[a]}" if runs[a] > 1 else op.name, tuple([holder[t] for t in op.writes])
        is_same = runs[a] == 1 and reads == op.reads and writes == op.writes and op.dynamic is None
        ops.append(op if is_same else replace(op, name=name, reads=reads, writes=writes, dynamic=None))
        op_of.append(a)
    outputs = tuple([holder[t] for t in graph.outputs])
    written = replace(graph, tensors=tuple(tensors), ops=tuple(ops), outputs=outputs)
    new = replace(
        problem,
        graph=written,
        homes=tuple([problem.homes[t] for t in tensor_of]),
        durations_ns=[problem.durations_ns[op] for op in op_of],
        trial=lambda _, plan: problem.replay(rewritten.translated(plan)),
    )
    rewritten = Rewritten(new, tuple(op_of), tuple(tensor_of))
    return rewritten


@dataclass(frozen=True, eq=False)
class Rewrite:
    """What a pass of `recompute` runs again, which takes about as long to write out as to choose.

    Attributes
    ----------
    problem, chosen
        The problem as given, and the pass.
    """

    problem: Problem
    chosen: recompute.RecomputePass

    @cached_property
    def written(self) -> Rewritten:
        """The rewritten problem."""
        return rewrite(self.problem, self.chosen.plan())

    @property
    def least_ns(self) -> int:
        """Time of its ops in line, which is part of the lower bound of the rewritten problem [ns]."""
        is_plain = not (any(self.problem.streams) or self.problem.graph.meets)
        return sum(self.problem.durations_ns) + self.chosen.again_ns if is_plain else 0

    def differs(self, other: Rewrite) -> bool:
        """Tell whether it leads to another graph."""
        is_as_long = self.chosen.again_ns == other.chosen.again_ns
        return not is_as_long or self.written.problem.graph != other.written.problem.graph


def rewrites(problem: Problem, kept: frozenset[int] = frozenset()) -> list[Rewrite]:
    """Search for the limit at which recompute and copies balance, and return the rewrites on the way.

    The one with the best bound comes first, and the best that needs no copies last; several limits may lead to the same
    problem, which is returned once.

    Parameters
    ----------
    problem
        Problem to plan for.
    kept
        Tensors that are not given up.
    """
    low: float = problem.budget_bytes
    high: float = int(live_bytes(problem.graph).max())
    if high <= low or len(problem.graph.ops) > LARGEST:
        return []
    homes = tuple([problem.compute_tier if t in kept else home for t, home in enumerate(problem.homes)])
    walker = recompute.Walker(replace(problem, budget_bytes=math.inf, homes=homes))
    variants = product(recompute.TIME_WEIGHTS, walker.keeping(low))
    variant = min(variants, key=lambda variant: walker.walk(low, *variant).again_ns)
    different, tried = [Rewrite(problem, walker.walk(low, *variant))], list[Rewrite]()
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        tried.append(Rewrite(problem, walker.walk(middle, *variant)))
        if tried[-1].written.problem.bound_ns > tried[-1].written.problem.clock[-1]:
            high = middle
        else:
            low = middle
    for candidate in sorted(tried, key=lambda candidate: candidate.written.problem.bound_ns):
        if all(map(candidate.differs, different)):
            different.append(candidate)
    return [*different[1:], different[0]]
