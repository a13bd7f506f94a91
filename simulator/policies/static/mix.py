"""Keep, move or make again: recompute and copies in one plan.

What is made again is chosen by the walk of `recompute`, under a limit above the budget: it gives up first what costs
least compute for its bytes. What is still too much then is left to copies. The runs that the walk repeats are written
out as a graph of their own: an op that runs again is an op of its own (``name#2``), and a tensor that was given up is a
new tensor once it is made again (``name#2``). So the compiler plans copies for it as for any other graph, and its plan
is translated back step by step.

The lower the limit, the more compute and the fewer copies. For a limit the *lower bound* of the rewritten graph tells
what may be hoped for without planning it: the sum of its ops rises as the limit falls, and what copies cost falls. So
the best limit is where the two meet, which bisection finds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

from simulator.graph import Graph, Op, Tensor
from simulator.lifetime import Lifetimes, live_bytes
from simulator.plan import COMPUTE, DETACH, Actions, Plan
from simulator.policies import recompute
from simulator.policies.problem import Problem
from simulator.units import counted, human

LARGEST = 25_000
"""Ops of a step up to which recompute is considered, and of all rewritten graphs that are compiled, beyond the first:
about 10 s of planning."""

HALVINGS = 4
"""How often the range of limits, from the budget to the peak of all that is live, is halved."""


@dataclass(frozen=True)
class Rewritten:
    """A problem in which some ops run again, and the way back.

    Attributes
    ----------
    problem
        The problem: its graph has an op for each run, and a tensor for each time that one is made.
    op_of, tensor_of
        Op and tensor of the original graph, by op and tensor of the rewritten one.
    """

    problem: Problem
    op_of: tuple[int, ...]
    tensor_of: tuple[int, ...]

    @property
    def note(self) -> str:
        """How much runs again."""
        durations_ns = self.problem.durations_ns
        once = dict(zip(self.op_of, durations_ns, strict=True))
        again_ns = sum(durations_ns) - sum(once.values())
        return f"{counted(len(self.op_of) - len(once), 'repeated run')} of ops, {human(again_ns, 'ns')} in all"

    def translated(self, plan: Plan) -> Plan:
        """Return a plan for the rewritten graph as one for the original graph, action for action."""
        actions, fixed = Actions(), plan.fixed
        for kind, a, b, c in fixed.codes() if fixed is not None else ():
            actions.append(kind, self.op_of[a] if kind == COMPUTE else self.tensor_of[a], b, c)
        originals = max(self.tensor_of, default=-1) + 1
        return replace(plan, actions=actions, home=plan.home[:originals])


def rewrite(problem: Problem, repeated: Plan) -> Rewritten:
    """Turn a plan that runs ops again into a problem of its own.

    Parameters
    ----------
    problem
        What the plan is for.
    repeated
        A fixed plan without copies.
    """
    writer, graph = _WriteOut(problem.graph), problem.graph
    for kind, a, b, _ in repeated.fixed.codes() if repeated.fixed is not None else ():
        if kind == COMPUTE:
            writer.run(a)
        elif kind == DETACH and b == problem.compute_tier:
            writer.lost.add(a)
    outputs = tuple([writer.now[t] for t in graph.outputs])
    written = replace(graph, tensors=tuple(writer.tensors), ops=tuple(writer.ops), outputs=outputs)
    new = replace(
        problem,
        graph=written,
        homes=tuple([problem.homes[t] for t in writer.tensor_of]),
        durations_ns=[problem.durations_ns[op] for op in writer.op_of],
        lifetimes=Lifetimes(written),
        trial=lambda _, plan: problem.replay(found.translated(plan)),
    )
    found = Rewritten(new, tuple(writer.op_of), tuple(writer.tensor_of))
    return found


def rewrites(problem: Problem, kept: frozenset[int] = frozenset()) -> list[Rewritten]:
    """Search for the limit at which recompute and copies balance, and return the rewritten problems on the way.

    They come with the best bound first, and at last the best that needs no copies; each once, as several limits may
    lead to the same.

    Parameters
    ----------
    problem
        What to plan for.
    kept
        Tensors that are not given up.
    """
    low: float = problem.budget_bytes
    high: float = int(live_bytes(problem.graph, problem.lifetimes).max())
    if high <= low or len(problem.graph.ops) > LARGEST:
        return []
    homes = tuple([problem.compute_tier if t in kept else home for t, home in enumerate(problem.homes)])
    walker = recompute.Walker(replace(problem, budget_bytes=math.inf, homes=homes))
    manners = product(recompute.TIME_WEIGHTS, walker.keeping(low))
    manner = min(manners, key=lambda manner: walker.walk(low, *manner).again_ns)

    def rewritten(limit_bytes: float) -> Rewritten:
        return rewrite(problem, walker.walk(limit_bytes, *manner).plan())

    first = rewritten(low)
    found: list[Rewritten] = []
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found.append(rewritten(middle))
        if found[-1].problem.bound_ns > found[-1].problem.clock[-1]:
            high = middle
        else:
            low = middle
    different = [first]
    for one in sorted(found, key=lambda one: one.problem.bound_ns):
        if all(one.problem.graph != other.problem.graph for other in different):
            different.append(one)
    return [*different[1:], first]


class _WriteOut:
    """Writes runs of ops as ops; `now` is the tensor that holds each original tensor's value, `lost` is given up."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.tensors: list[Tensor] = list(graph.tensors)
        self.tensor_of = list(range(len(graph.tensors)))
        self.now = list(self.tensor_of)
        self.ops: list[Op] = []
        self.op_of: list[int] = []
        self.lost: set[int] = set()
        self._made = [1] * len(graph.tensors)
        self._runs = [0] * len(graph.ops)

    def run(self, op: int) -> None:
        """Add one run of an op; if it reads dynamically, it reads all candidates."""
        what = self._graph.ops[op]
        what = replace(what, late=None) if what.late else what
        reads = tuple([self.now[t] for t in what.reads])
        for tensor in self.lost.intersection(what.writes):
            self._make_again(tensor)
        writes = tuple([self.now[t] for t in what.writes])
        self._runs[op] += 1
        if self._runs[op] > 1:
            what = replace(what, name=f"{what.name}#{self._runs[op]}", reads=reads, writes=writes)
        elif reads != what.reads or writes != what.writes:
            what = replace(what, reads=reads, writes=writes)
        self.ops.append(what)
        self.op_of.append(op)

    def _make_again(self, tensor: int) -> None:
        self.lost.remove(tensor)
        about = self._graph.tensors[tensor]
        if about.persistent:
            return
        self._made[tensor] += 1
        self.now[tensor] = len(self.tensors)
        self.tensor_of.append(tensor)
        self.tensors.append(replace(about, name=f"{about.name}#{self._made[tensor]}"))
